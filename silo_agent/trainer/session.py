"""One task on the private side: data checked and encoded once, then one paid ballot per round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import structlog
from numpy.typing import NDArray

from silo_agent.trainer.data.cells import Treated
from silo_agent.trainer.data.features import Encoder
from silo_agent.trainer.data.home_model import HomeModel
from silo_agent.trainer.data.label_space import UNUSABLE
from silo_agent.trainer.data.private_data import load_private
from silo_agent.trainer.data.schema_check import Misfit, check, prepare
from silo_agent.trainer.methods.co_training import Consensus, CoTraining
from silo_agent.trainer.methods.local_learner import DiskFailed, LocalLearner
from silo_agent.trainer.methods.protocol import CannotServe, Method, SiloFacts
from silo_agent.trainer.methods.registry import method_for
from silo_agent.trainer.methods.warm_start import WarmStart, WarmStartMismatch, load_warm_start
from silo_agent.trainer.models.catalogue import build, reads
from silo_agent.trainer.models.extractors.loading import StoredExtractor
from silo_agent.trainer.models.extractors.protocol import Extractor
from silo_agent.trainer.models.failures import checked_labels, constant_labels, note_failure
from silo_agent.trainer.models.protocol import AnyLearner, Features, Labelled, Labels
from silo_agent.trainer.privacy.ledger.ledger import Ledger
from silo_agent.trainer.privacy.ledger.patients import Marks, PatientRecord
from silo_agent.trainer.privacy.ledger.same_patients import admit
from silo_agent.trainer.privacy.mechanisms.protocol import Extracted, Scope, SiloRound
from silo_agent.trainer.release import BallotReleaser, PaidBallot
from silo_agent.trainer.settings import SiloSettings, TrainingSettings
from silo_agent.trainer.task_folder import FINAL_CONSENSUS, Folder, TaskFolder
from wire.ballot import BallotShape, unpack
from wire.privacy.declaration import Unit
from wire.privacy.randomness import Bits
from wire.runtime.crash_points import crash_point
from wire.schema import SetSchema
from wire.task.definition import TaskDefinition

log = structlog.get_logger()


@dataclass(frozen=True, eq=False)
class Session:
    """A task this silo is ready for."""

    definition: TaskDefinition
    folder: Folder
    encoder: Encoder | None
    """How raw rows are read; None in experiments, whose rows are encoded already."""
    method: Method
    learner: LocalLearner
    releaser: BallotReleaser
    extracted: Extracted | None = None
    """Rows as the task's extractor sees them."""
    extractor: Extractor | None = None
    """What the learner sees rows through, if silo.yaml says so."""
    numbers: Extracted | None = None
    """Rows as numbers, where the learner reads texts."""

    @property
    def shape(self) -> BallotShape:
        """The form of this task's ballots."""
        return self.definition.shape

    def vote(
        self, round_number: int, consensus: bytes | None, known_ballots: int = 0
    ) -> PaidBallot:
        """The ballot of round `round_number`; asked again, the identical one.

        `consensus` is the latest published one, packed in the index encoding; `known_ballots` is how many
        are known to have left here, so that an old copy of the ledger is noticed.
        """
        self.releaser.require_ballots(known_ballots)
        published = self._unpacked(consensus)
        silo = self._silo_round(round_number, published)
        if self.releaser.is_new(round_number):
            crash_point("vote-asked")
            if self.method.trains_every_round(self.learner) or self.releaser.needs_labels(silo):
                silo = replace(silo, labels=self._labels(self.learner, round_number, published))
        return self.releaser.ballot(silo)

    def finish(self, round_number: int, consensus: bytes | None) -> None:
        """Keeps the final consensus, that of `round_number`; trains once more on it and keeps the model.

        If the learner fails there is no model, which is noted at home; the network side sees no difference.
        """
        if self.folder.model_path() is None:
            if self.encoder is None:
                raise ValueError("a model that cannot read raw rows is of no use at home")
            if consensus is not None:
                self.folder.put(FINAL_CONSENSUS, consensus)
            try:
                learner = self.home_learner(round_number + 1, consensus)
            except DiskFailed:
                raise
            except Exception as error:
                note_failure("the final training", error, self.folder)
                return
            crash_point("model-trained")
            labels = self.definition.labels
            self.folder.keep_model(HomeModel(self.encoder, learner, labels, self.extractor))
            crash_point("model-kept")

    def home_learner(self, round_number: int, consensus: bytes | None) -> AnyLearner:
        """The model this silo keeps, trained in the place of round `round_number`."""
        return self.method.final_learner(self.learner, round_number, self._unpacked(consensus))

    def _labels(
        self, learner: LocalLearner, round_number: int, consensus: Consensus | None
    ) -> Labels:
        """(rows,) what the method says of U; abstentions if its learner fails, since that may be one patient's doing.

        What is released is made of these labels as of any others, and costs the same.
        """
        try:
            said = self.method.label_public(learner, round_number, consensus)
            return checked_labels(said, self.shape.rows, self.shape.classes)
        except DiskFailed:
            raise
        except Exception as error:
            note_failure(f"the training of round {round_number}", error, self.folder)
            return constant_labels(self.shape.rows)

    def _unpacked(self, consensus: bytes | None) -> Consensus | None:
        return None if consensus is None else unpack(consensus, self.shape.as_index())

    def _silo_round(self, round_number: int, consensus: Consensus | None) -> SiloRound:
        learner, known = self.learner, self.releaser.known
        return SiloRound(
            private=learner.training.private,
            patients=learner.patients,
            public=learner.training.public,
            classes=len(self.definition.labels),
            round_number=round_number,
            relabel_without=lambda unit: self._labels(
                learner.without(unit), round_number, consensus
            ),
            build=learner.training.build,
            kept=self.folder,
            extracted=self.extracted,
            numbers=self.numbers,
            known=known if len(known) < len(self.definition.labels) else None,
        )


@dataclass(frozen=True)
class SiloContext:
    """What all tasks of this silo share: silo.yaml, where it lies, and what keeps the books."""

    settings: SiloSettings
    base: Path
    """The folder that paths in silo.yaml are relative to."""
    tasks: Path
    ledger: Ledger
    bits: Bits
    patients: PatientRecord | None = None
    """Whose data were released from; None where no one keeps such a record."""


@dataclass(frozen=True)
class TaskStorage:
    """Where a task's traces go: its folder, the silo's ledger; and the bits that noise is made of."""

    folder: Folder
    ledger: Ledger
    bits: Bits


@dataclass(frozen=True, eq=False)
class SessionInputs:
    """What a session is made of: the task, silo.yaml, and rows as the learner reads them."""

    definition: TaskDefinition
    settings: TrainingSettings
    private: Labelled = field(repr=False)
    public: Features = field(repr=False)
    patients: NDArray[np.int64] = field(repr=False)
    """(n,) whose row it is: a number for each patient."""
    unit: Unit
    storage: TaskStorage
    silo: str = ""
    """The silo's name, which a task may have its own label space for."""
    extractor: Extractor | None = None
    encoder: Encoder | None = None
    warm_start: WarmStart | None = None
    numbers: Extracted | None = field(default=None, repr=False)
    """The same rows encoded, where the learner reads texts."""
    made_with: str = ""
    """Digest of the settings, as approvals name it."""


def open_session(
    definition: TaskDefinition,
    schema: SetSchema,
    public_file: Path,
    silo_context: SiloContext,
    silo: str = "",
    extractor: Extractor | None = None,
) -> tuple[Session | None, list[Misfit]]:
    """A session if data and privacy mechanism fit the task, and what was found either way.

    `silo` is this silo's name, which a task may have its own label space for.
    """
    settings = silo_context.settings
    private = load_private(settings.data, silo_context.base)
    read, known = reads(settings.model), definition.label_space(silo)
    misfits = check(private, schema, reads=read)
    if any(misfit.fatal for misfit in misfits):
        return None, misfits
    if silo_context.patients is not None:
        marks, books = Marks.of(private), silo_context.ledger
        admit(settings.privacy, marks, settings.unit, books, silo_context.patients)
    encoder = Encoder.from_public(schema, public_file)
    ready = prepare(private, schema, definition.labels, known)
    _log_treated(definition, ready.treated)
    folder = TaskFolder(silo_context.tasks, definition.digest)
    texts = read == "texts"
    try:
        warm_start = _warm_start(definition, silo_context, encoder, known)
        folder.keep_definition(definition)
        session = assemble(
            SessionInputs(
                definition=definition,
                settings=settings,
                private=Labelled(
                    encoder.encode(ready.features, flat=False, texts=texts), ready.labels
                ),
                public=encoder.public(flat=False, texts=texts),
                patients=ready.patients,
                unit=settings.unit,
                storage=TaskStorage(folder, silo_context.ledger, silo_context.bits),
                silo=silo,
                extractor=extractor,
                encoder=encoder,
                warm_start=warm_start,
                numbers=Extracted(encoder.encode(ready.features), encoder.public())
                if texts
                else None,
                made_with=settings.criteria.settings,
            )
        )
    except CannotServe as unfit:
        return None, [*misfits, Misfit(unfit.sentence)]
    session.releaser.require_kept_ballots()
    return session, misfits


def assemble(inputs: SessionInputs) -> Session:
    """A session over rows as the learner reads them; `CannotServe` says why the silo cannot serve the task.

    Rows of label -1 are left out; their patients are counted as units all the same. A learner that cannot be made at
    all raises ConfigurationError here: later, when it may be the rows' doing, nothing about it is refused.
    """
    definition, settings, storage = inputs.definition, inputs.settings, inputs.storage
    method = method_for(definition, inputs.silo)
    extracted, units = _extracted(inputs), len(np.unique(inputs.patients))
    method.require(
        SiloFacts(
            has_extractor=extracted is not None, starts_from_student=inputs.warm_start is not None
        )
    )
    scope = Scope(
        shape=definition.shape,
        rounds=definition.rounds.max_rounds,
        epsilon=settings.privacy.epsilon,
        delta=settings.privacy.delta,
        unit=inputs.unit,
        units=units,
    )
    mechanism = method.mechanism(settings.privacy, scope)
    if why := mechanism.misfit():
        raise CannotServe(why)
    # Every row is encoded and extracted before any is left out: a row's numbers depend on no other's label.
    usable = inputs.private.labels != UNUSABLE
    training = _training(inputs, method, extracted)
    training.build(training.seed)
    return Session(
        definition=definition,
        folder=storage.folder,
        encoder=inputs.encoder,
        method=method,
        learner=LocalLearner(
            training=replace(training, private=training.private[usable]),
            patients=inputs.patients[usable],
            folder=storage.folder,
            consensus_share=settings.consensus_share,
            warm_start=inputs.warm_start,
        ),
        releaser=BallotReleaser(
            definition=definition,
            folder=storage.folder,
            settings=settings.privacy,
            mechanism=mechanism,
            scope=scope,
            ledger=storage.ledger,
            bits=storage.bits,
            known=definition.label_space(inputs.silo),
            made_with=inputs.made_with,
        ),
        extracted=extracted and extracted.of_rows(usable),
        extractor=inputs.extractor if settings.features == "extractor" else None,
        numbers=inputs.numbers and inputs.numbers.of_rows(usable),
    )


def _log_treated(definition: TaskDefinition, notes: Sequence[Treated]) -> None:
    for note in notes:
        log.warning(
            "private_data", task=definition.name, sentence=note.sentence, detail=note.quoted
        )


def _warm_start(
    definition: TaskDefinition,
    silo_context: SiloContext,
    encoder: Encoder,
    known: tuple[int, ...],
) -> WarmStart | None:
    settings = silo_context.settings
    if settings.start_from is None:
        return None
    path, raw = silo_context.base / settings.start_from, settings.features == "raw"
    try:
        return load_warm_start(path, definition, encoder, known, raw=raw)
    except WarmStartMismatch as unfit:
        raise CannotServe(str(unfit)) from unfit


def _extracted(inputs: SessionInputs) -> Extracted | None:
    """Rows as the task's extractor sees them, if it is here."""
    extractor = inputs.extractor
    if extractor is None:
        return None
    plain = inputs.numbers or Extracted(inputs.private.features, inputs.public)
    return Extracted(extractor.transform(plain.private), extractor.transform(plain.public))


def _training(inputs: SessionInputs, method: Method, extracted: Extracted | None) -> CoTraining:
    settings, private, public = inputs.settings, inputs.private, inputs.public
    if settings.features == "extractor":
        if extracted is None:
            raise CannotServe(
                "silo.yaml says features: extractor, and the task names no extractor."
            )
        private, public = Labelled(extracted.private, private.labels), extracted.public
    extractor = inputs.extractor
    beginning = extractor.file if isinstance(extractor, StoredExtractor) else None
    row_shape = tuple(public.shape[1:])
    return CoTraining(
        private=private,
        public=public,
        build=method.learner_builder(
            lambda classes, seed: build(settings.model, classes, row_shape, seed, beginning)
        ),
        local_steps=inputs.definition.local_steps,
        seed=settings.seed,
    )
