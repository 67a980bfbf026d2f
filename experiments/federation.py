"""A federation in one process, of the product's own parts: trainer sessions, ledger, election.

What is left out is what changes no label: wire, certificates, processes. The same task over the wire gives the
same ballots and the same consensus, bit for bit (tests/integration/test_methods.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.consensus.electing import Outcome, elect
from experiments.seeded import SeededBits
from silo_agent.models.extractors.protocol import Extractor
from silo_agent.models.protocol import AnyLearner, Features, Labelled
from silo_agent.privacy.ledger import Ledger
from silo_agent.privacy.nobody import Memory
from silo_agent.trainer.session import Keeping, Session, assemble
from silo_agent.trainer.settings import TrainingSettings
from wire.ballot import Labels, pack
from wire.errors import ConfigurationError
from wire.privacy.declaration import Declaration, Unit
from wire.privacy.randomness import Bits
from wire.task import TaskDefinition


@dataclass(frozen=True, eq=False)
class Hospital:
    """A silo: its rows, encoded and labelled with the task's class indices, and its silo.yaml."""

    private: Labelled = field(repr=False)
    settings: TrainingSettings
    patients: npt.NDArray[np.int64] | None = field(default=None, repr=False)
    """Whose row it is; every row somebody else's if None."""


@dataclass(frozen=True, eq=False)
class Course:
    """What a federation left behind."""

    definition: TaskDefinition
    outcomes: tuple[Outcome, ...] = field(repr=False)
    """Per round."""
    ballots: tuple[Mapping[str, bytes], ...] = field(repr=False)
    """Per round and silo, as they leave the hospital."""
    home: Mapping[str, AnyLearner] = field(repr=False)
    """Each silo's own model, trained at the end; it stays at home. Empty if it was not asked for."""
    spent: Mapping[str, float]
    """ε each silo's ledger has for the task; ∞ without noise."""

    def labels(self, silo: str | None = None) -> Labels:
        """(rows,) the last consensus, as `silo` or (None) one who knows all classes sees it; -1 for no label."""
        known = None if silo is None else self.definition.label_space(silo)
        return self.outcomes[-1].labels(known)


def task(
    public: Features, labels: int | Sequence[str], silos: Sequence[str], **settings: Any
) -> TaskDefinition:
    """A definition over encoded public rows; `settings` as task.yaml has them. All silos vote in every round.

    Rounds are not ended early by churn unless `settings` says so.
    """
    names = [str(index) for index in range(labels)] if isinstance(labels, int) else list(labels)
    rounds = {"quorum": len(silos), "stop_patience": 0, **settings.pop("rounds", {})}
    return TaskDefinition.model_validate(
        {
            "name": "experiment",
            "public_set": set_digest(public),
            "rows": len(public),
            "labels": names,
            "silos": list(silos),
            "rounds": rounds,
            **settings,
        }
    )


def set_digest(public: Features) -> str:
    """What stands for the digest of a public set that was never published."""
    return hashlib.sha256(np.ascontiguousarray(public).tobytes()).hexdigest()


def hold(
    definition: TaskDefinition,
    hospitals: Mapping[str, Hospital],
    public: Features,
    *,
    extractor: Extractor | None = None,
    bits: Callable[[str], Bits] | None = None,
    home: bool = True,
    on_round: Callable[[int, Outcome], None] | None = None,
) -> Course:
    """Runs a task to its end. Silos vote in the order of their names, as the coordinator counts them.

    `bits` gives a silo's noise; by default it follows from the silo's seed and name, for repeatable experiments.
    """
    with TemporaryDirectory(prefix="consilium-experiment-") as folder:
        sessions = {
            name: _session(definition, name, hospitals[name], public, extractor, bits, Path(folder))
            for name in sorted(hospitals)
        }
        return _run(definition, sessions, home, on_round)


def _run(
    definition: TaskDefinition,
    sessions: Mapping[str, Session],
    home: bool,
    on_round: Callable[[int, Outcome], None] | None,
) -> Course:
    ballots: list[dict[str, bytes]] = []
    outcomes: list[Outcome] = []
    latest: dict[str, bytes | None] = dict.fromkeys(sessions)
    for number in range(1, definition.rounds.max_rounds + 1):
        declared: dict[str, Declaration] = {}
        cast: dict[str, bytes] = {}
        for name, session in sessions.items():
            paid = session.vote(number, latest[name])
            cast[name], declared[name] = paid.data, paid.declaration
        outcome = elect(definition, number, declared, _Box(cast), SeededBits(number))
        ballots.append(cast)
        outcomes.append(outcome)
        latest = {name: _seen(definition, name, outcome) for name in sessions}
        if on_round is not None:
            on_round(number, outcome)
    last = definition.rounds.max_rounds + 1
    models = {
        name: session.home_learner(last, latest[name]) for name, session in sessions.items() if home
    }
    spent = {name: session.releasing.spent() for name, session in sessions.items()}
    return Course(definition, tuple(outcomes), tuple(ballots), models, spent)


def _seen(definition: TaskDefinition, silo: str, outcome: Outcome) -> bytes:
    return pack(outcome.labels(definition.label_space(silo)), definition.shape.as_index())


def _session(
    definition: TaskDefinition,
    name: str,
    hospital: Hospital,
    public: Features,
    extractor: Extractor | None,
    bits: Callable[[str], Bits] | None,
    folder: Path,
) -> Session:
    rows = len(hospital.private)
    ledger = Ledger(
        folder / name / "ledger.db", folder / name / "witness.json", lambda: datetime.now(UTC)
    )
    text = f"{hospital.settings.seed}/{name}".encode()
    drawn = SeededBits(int.from_bytes(hashlib.sha256(text).digest()[:8], "big"))
    session = assemble(
        definition,
        hospital.settings,
        hospital.private,
        public,
        Keeping(_Memory(), ledger, drawn if bits is None else bits(name)),
        patients=np.arange(rows) if hospital.patients is None else hospital.patients,
        unit=Unit.ROW if hospital.patients is None else Unit.PATIENT,
        known=definition.label_space(name),
        extractor=extractor,
        silo=name,
    )
    if isinstance(session, str):
        raise ConfigurationError(f"{name} cannot take part: {session}", "Change the setting.")
    return session


class _Box:
    """Ballots in memory."""

    def __init__(self, cast: Mapping[str, bytes]) -> None:
        self._cast = cast

    def __iter__(self) -> Any:
        return iter(self._cast.items())


class _Memory(Memory):
    """A task folder without a disk: nothing crashes here, so nothing has to outlive the process."""

    def __init__(self) -> None:
        super().__init__()
        self._ballots: dict[int, tuple[bytes, bytes]] = {}
        self._learner: tuple[int, Any] | None = None

    def rounds_voted(self) -> tuple[int, ...]:
        return tuple(sorted(self._ballots))

    def ballot(self, number: int) -> bytes | None:
        return self._ballots[number][0] if number in self._ballots else None

    def slip(self, number: int) -> bytes | None:
        return self._ballots[number][1] if number in self._ballots else None

    def keep_ballot(self, number: int, ballot: bytes, slip: bytes) -> None:
        self._ballots[number] = (ballot, slip)

    def learner(self, number: int) -> Any | None:
        return self._learner[1] if self._learner and self._learner[0] == number else None

    def latest_learner(self, before: int) -> Any | None:
        return self._learner[1] if self._learner and self._learner[0] < before else None

    def keep_learner(self, number: int, learner: Any) -> None:
        self._learner = (number, learner)

    def keep_model(self, model: Any) -> None:
        raise NotImplementedError("experiments keep their models themselves")

    def model_path(self) -> Path | None:
        return None
