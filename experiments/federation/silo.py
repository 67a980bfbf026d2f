"""A silo of a federation in one process: its rows, its settings, and the trainer session made of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from experiments.federation.memory_folder import MemoryFolder
from experiments.seeded import SeededBits
from silo_agent.trainer.methods.protocol import CannotServe
from silo_agent.trainer.models.extractors.protocol import Extractor
from silo_agent.trainer.models.protocol import Features, Labelled
from silo_agent.trainer.privacy.ledger.ledger import Ledger
from silo_agent.trainer.session import Session, SessionInputs, TaskStorage, assemble
from silo_agent.trainer.settings import TrainingSettings
from wire.errors import ConfigurationError
from wire.privacy.declaration import Unit
from wire.privacy.randomness import Bits
from wire.task.definition import TaskDefinition

Patients = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Silo:
    """Rows, encoded and labelled with the task's class indices, and what silo.yaml would say."""

    private: Labelled = field(repr=False)
    settings: TrainingSettings
    patients: Patients | None = field(default=None, repr=False)
    """Whose row it is; None if no two rows are of one patient."""

    def noise_bits(self, name: str) -> Bits:
        """Bits that follow from the silo's seed and name, so that an experiment can be repeated."""
        text = f"{self.settings.seed}/{name}".encode()
        return SeededBits(int.from_bytes(hashlib.sha256(text).digest()[:8], "big"))


class SiloCannotTakePart(ConfigurationError):
    """The silo's settings do not serve the task."""

    def __init__(self, silo: str, reason: str) -> None:
        super().__init__(f"{silo} cannot take part: {reason}", "Change the setting.")
        self.reason = reason


def silo_names(count: int) -> list[str]:
    """silo-001 and so on: their alphabetical order is that of their numbers."""
    return [f"silo-{index:03}" for index in range(1, count + 1)]


def make_silos(
    names: Sequence[str],
    private: Sequence[Labelled],
    settings: Callable[[int], TrainingSettings],
    patients: Sequence[Patients] | None = None,
) -> dict[str, Silo]:
    """One silo per name and part of the private rows; `settings` gives the silo.yaml of silo 0, 1, …."""
    owners = [None] * len(names) if patients is None else patients
    return {
        name: Silo(rows, settings(index), owner)
        for index, (name, rows, owner) in enumerate(zip(names, private, owners, strict=True))
    }


def open_session(
    definition: TaskDefinition,
    name: str,
    silo: Silo,
    public: Features,
    extractor: Extractor | None,
    bits: Bits,
    folder: Path,
) -> Session:
    """The trainer's own session, with its ledger in `folder`; SiloCannotTakePart if settings and task do not fit."""
    ledger = Ledger(folder / "ledger.db", folder / "witness.json", lambda: datetime.now(UTC))
    inputs = SessionInputs(
        definition=definition,
        settings=silo.settings,
        private=silo.private,
        public=public,
        patients=np.arange(len(silo.private)) if silo.patients is None else silo.patients,
        unit=Unit.ROW if silo.patients is None else Unit.PATIENT,
        storage=TaskStorage(MemoryFolder(), ledger, bits),
        silo=name,
        extractor=extractor,
    )
    try:
        return assemble(inputs)
    except CannotServe as unfit:
        raise SiloCannotTakePart(name, unfit.sentence) from unfit
