"""Everything that can go wrong before the first round, found on the private side.

`consilium agent check` shows it where the data are and may quote a few values. `consilium agent doctor`, on the
network side, hears of the checks that read rows only how they went (`without_rows`), which depends on the form of the
file and on no patient's row.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from silo_agent.shared.home import SiloHome
from silo_agent.trainer.about_task import about_rows
from silo_agent.trainer.approval.policy import in_words
from silo_agent.trainer.data.private_data import PrivateData, load_private
from silo_agent.trainer.data.schema_check import check
from silo_agent.trainer.isolation import Isolation, Mode
from silo_agent.trainer.models.catalogue import build, reads
from silo_agent.trainer.models.failures import LAST_FAILURE
from silo_agent.trainer.models.gpu import cuda_devices
from silo_agent.trainer.privacy.ledger.ledger import Ledger
from silo_agent.trainer.privacy.ledger.patients import Marks, PatientRecord
from silo_agent.trainer.privacy.ledger.same_patients import compare
from silo_agent.trainer.public_copies import PublicCopies
from silo_agent.trainer.settings import SiloSettings, read_settings
from silo_agent.trainer.task_folder import TaskFolder, seen_tasks
from wire.errors import (
    PATIENT_RECORD_LOST,
    PATIENTS_CHARGED_ELSEWHERE,
    ConsiliumError,
    Refusal,
)
from wire.public_content import inspect
from wire.runtime.disk import FreeBytes, check_disk, free_bytes
from wire.runtime.files import lock_holder
from wire.runtime.findings import Check, Finding, Status, failed, ok, run_in_order, warning
from wire.runtime.permissions import access_finding
from wire.task.definition import TaskDefinition

_READING_ROWS = ("private data", "learner", "data schema")


def without_rows(finding: Finding) -> Finding:
    """What the network side may hear of a finding: of a check that reads private rows how it went, and no more."""
    if finding.name not in _READING_ROWS or finding.status is Status.SKIPPED:
        return finding
    if finding.status is Status.OK:
        return replace(finding, sentence="Nothing to correct.")
    return replace(
        finding,
        sentence="Something is to be corrected on the private side.",
        next_step="Run `consilium agent check` where the trainer runs: it says what.",
    )


class TrainerChecks:
    """Looks at silo.yaml, the data and the learner as a task would, and trains nothing."""

    def __init__(
        self,
        home: SiloHome,
        public_file: Path | None = None,
        *,
        isolation: Isolation | None = None,
        free: FreeBytes = free_bytes,
    ) -> None:
        """`isolation` is how this process gave up the network, if it did."""
        self._home = home
        self._public_file = public_file
        self._isolation = isolation
        self._free = free
        self._settings: SiloSettings
        self._private: PrivateData
        self.details: list[str] = []
        """What single rows and cells are like, and what the public sets are: for the private side's screen only."""

    def findings(self) -> Iterator[Finding]:
        """In the order of need."""
        if self._isolation is not None:
            yield _isolated(self._isolation)
        yield check_disk("trainer's disk", [self._home.trainer, self._home.exchange], 0, self._free)
        yield access_finding(self._home.private_side, "trainer's files")
        blocked = ""
        for finding in run_in_order([("silo.yaml", self._read)]):
            yield finding
            blocked = "silo.yaml failed" if finding.status is Status.FAILED else ""
        settled: list[tuple[str, Check]] = [
            ("policy", self._policy),
            ("privacy", self._privacy),
            ("ledger", self._ledger),
            ("GPU", self._gpu),
        ]
        yield from run_in_order(settled, blocked=blocked)
        needing_data: list[tuple[str, Check]] = [
            ("private data", self._load),
            ("patients", self._patients),
            ("learner", self._build),
            ("data schema", self._fit),
        ]
        yield from run_in_order(needing_data, blocked=blocked)

    def _read(self) -> Finding:
        self._settings = read_settings(self._home.settings_file)
        if lock_holder(self._home.trainer_lock) not in (None, self._settings.fingerprint):
            return warning(
                "silo.yaml",
                f"{self._home.settings_file} is sound, and the running trainer read something else.",
                "Restart the trainer: until then it does nothing.",
            )
        return ok("silo.yaml", f"{self._home.settings_file} is sound.")

    def _policy(self) -> Finding:
        return ok("policy", "; ".join(self._settings.policy.in_words()) + ".")

    def _privacy(self) -> Finding:
        privacy = self._settings.privacy
        said = f"{in_words(privacy.promise)}; `consilium privacy explain` says what that means."
        if not privacy.protects:
            return warning("privacy", said, "Compare mechanisms with `consilium privacy plan`.")
        if privacy.estimated:
            return warning("privacy", said, "Use sensitivity: worst_case for a guarantee.")
        return ok("privacy", said)

    def _ledger(self) -> Finding:
        ledger = Ledger(self._home.ledger, self._home.ledger_witness, lambda: datetime.now(UTC))
        ledger.verify()
        return ok("ledger", f"{len(ledger.releases())} releases on the books, none missing.")

    def _gpu(self) -> Finding:
        found, model = cuda_devices(), self._settings.model
        if found:
            return ok("GPU", f"The driver reports {found}.")
        if str(model.parameters.get("device", "")).startswith("cuda"):
            return warning(
                "GPU",
                f"silo.yaml asks for device cuda and the driver reports no GPU; {model.name} may not start.",
                "Set device to auto, or check the driver and that the container is given the GPU.",
            )
        return ok("GPU", f"None seen; {model.name} trains on the CPU.")

    def _load(self) -> Finding:
        data = self._settings.data
        self._private = load_private(data, self._home.settings_file.parent)
        unit = "patient" if data.patient_id else "row"
        self.details.append(f"{data.path}: {self._private.rows} rows")
        return ok("private data", f"They can be read; the unit of privacy is the {unit}.")

    def _patients(self) -> Finding:
        """Whether they were charged under another name; under which, and how many, is for the hospital's screen."""
        privacy = self._settings.privacy
        ledger = Ledger(self._home.ledger, self._home.ledger_witness, lambda: datetime.now(UTC))
        found = compare(
            privacy, Marks.of(self._private), ledger, PatientRecord(self._home.patients)
        )
        self.details += [
            f"data set {name}: {count} of these patients (or rows)"
            for name, count in found.shared.items()
        ]
        self.details += [f"data set {name}: its patients are not on record" for name in found.lost]
        for clause, fault in (
            (found.shared, PATIENTS_CHARGED_ELSEWHERE),
            (found.lost, PATIENT_RECORD_LOST),
        ):
            if clause:
                refusal = Refusal(fault)
                return failed("patients", refusal.sentence, refusal.hint)
        if found.unrecorded:
            return warning(
                "patients",
                "An earlier version charged other data sets and did not record whose they were.",
                "`consilium agent ledger` lists them; name those with the same patients under privacy.same_patients_as.",
            )
        return ok("patients", "None was charged under another name.")

    def _build(self) -> Finding:
        features, settings = self._private.features, self._settings
        shape = features.shape[1:] if isinstance(features, np.ndarray) else (1,)
        try:
            if reads(settings.model) == "texts":
                shape = ()
            build(settings.model, classes=2, row_shape=tuple(shape), seed=settings.seed)
        except ConsiliumError:
            raise
        except Exception as error:
            # A learner of the hospital's own may fail in any way and say anything; its kind is enough.
            return failed(
                "learner",
                f"Learner {settings.model.name} cannot be made ({type(error).__name__}).",
                "Make it in a Python shell with the same parameters and see why.",
            )
        return ok("learner", f"{settings.model.name} can be made.")

    def _fit(self) -> Finding:
        with PublicCopies.borrowed(self._home) as copies:
            return self._compared(copies)

    def _compared(self, copies: PublicCopies) -> Finding:
        unfit: list[str] = []
        notes: list[str] = []
        fitting: list[str] = []
        for label, path, labels in self._public_sets(copies):
            _, schema = inspect(path)
            misfits = check(self._private, schema, reads=reads(self._settings.model))
            for misfit in misfits:
                (unfit if misfit.fatal else notes).append(f"{label}: {misfit.sentence}")
            if not any(misfit.fatal for misfit in misfits):
                fitting.append(label)
                labels = labels or _labels_in(self._private)
                told = about_rows(self._private, schema, path, labels)
                self.details += [f"{label}: {line}" for line in told]
        self.details += _failures(self._home)
        if unfit:
            return failed("data schema", " ".join(unfit), "Correct the data or silo.yaml.")
        if not fitting:
            return ok("data schema", "No task has been laid before this silo yet.")
        return ok("data schema", " ".join([f"The private data fit {', '.join(fitting)}.", *notes]))

    def _public_sets(self, copies: PublicCopies) -> list[tuple[str, Path, tuple[str, ...]]]:
        """What to compare with: a file that was named, else a copy of the public set of every task seen so far."""
        if self._public_file is not None:
            return [(self._public_file.name, self._public_file, ())]
        found = []
        for path in sorted(self._home.tasks.glob("*/definition.json")):
            definition = TaskDefinition.model_validate_json(path.read_text(encoding="utf-8"))
            if os.path.lexists(self._home.public_sets / definition.public_set):
                content = copies.public_set(definition)
                found.append((f"task {definition.name}", content, definition.labels))
        return found


def _failures(home: SiloHome) -> list[str]:
    """What failed lately in the trainings of each task."""
    found = []
    for definition in seen_tasks(home.tasks):
        said = TaskFolder(home.tasks, definition.digest).get(LAST_FAILURE)
        if said is not None:
            found.append(f"task {definition.name}: {said.decode()}; the ballot abstains there.")
    return found


def _isolated(isolation: Isolation) -> Finding:
    if isolation.mode is Mode.NONE:
        return warning(
            "isolation",
            f"The trainer cannot be cut off from the network: {isolation.note}.",
            "Allow user namespaces (kernel.unprivileged_userns_clone), or give the trainer a container without network.",
        )
    return ok("isolation", f"The trainer {isolation.note}.")


def _labels_in(private: PrivateData) -> tuple[str, ...]:
    """The labels that occur, where no task says which there should be."""
    return tuple(sorted({label for label in private.labels.to_pylist() if label}))
