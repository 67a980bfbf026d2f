"""What every mechanism promises: say what a ballot costs, then make it from the private side.

A mechanism is asked for its offer first. Only if the ledger can pay for it is anything trained or drawn. What
`vote` returns may leave the hospital; nothing else a mechanism sees or makes may.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from silo_agent.trainer.models.protocol import AnyLearner, Features, Labelled, Labels
from wire.ballot import ABSTAIN, BallotShape, Encoding, pack, pack_one_hot, pack_scored
from wire.privacy.declaration import Declaration, MechanismName, Unit
from wire.privacy.events import Event
from wire.privacy.randomness import Bits

Scores: TypeAlias = npt.NDArray[np.uint8]
Ones: TypeAlias = npt.NDArray[np.bool_]


class Sensitivity(StrEnum):
    """How it is known how much one unit of privacy can change."""

    BY_CONSTRUCTION = "by_construction"
    """The mechanism itself bounds it."""
    WORST_CASE = "worst_case"
    """Everything may change."""
    STABILITY_BOUND = "stability_bound"
    EMPIRICAL = "empirical"

    @property
    def estimate(self) -> bool:
        """True if nobody has proved it."""
        return self in (Sensitivity.STABILITY_BOUND, Sensitivity.EMPIRICAL)


@dataclass(frozen=True)
class Scope:
    """What is known of a task before anything private is looked at."""

    shape: BallotShape
    rounds: int
    """Ballots the task may ask for at most."""
    epsilon: float | None
    """What the whole task may cost; None if silo.yaml sets the noise itself."""
    delta: float
    unit: Unit
    units: int
    """How many patients (or rows) there are; public, since neighbours replace one."""


@dataclass(frozen=True)
class PaidOnce:
    """A private model kept at home: paid for with the first ballot made from it, and free from then on."""

    basis: str
    """Its name, drawn at random, so that it is never another model's."""
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Offer:
    """What one more paid ballot costs and what may be said of it."""

    events: tuple[Event, ...]
    """Paid for anew with every such ballot; none where it is made of nothing but what is paid for once."""
    declaration: Declaration
    """The same for every ballot of a task."""
    sensitivity: Sensitivity
    parameters: Mapping[str, object] = field(default_factory=dict)
    """For the ledger: noise level, rows asked, sensitivity s and the like. JSON values."""
    once: tuple[PaidOnce, ...] = ()
    """Models kept at home that the ballot is made from."""

    def whole_task(self, paid_rounds: int) -> tuple[Event, ...]:
        """All that is ever paid if so many ballots are bought."""
        return (*self.events * paid_rounds, *(event for part in self.once for event in part.events))


class KeptFiles(Protocol):
    """What a mechanism keeps at home between the rounds of a task: whole or not there, fsync'd."""

    def get(self, name: str) -> bytes | None:
        """What was kept under a name, if anything was."""
        ...

    def put(self, name: str, content: bytes) -> None:
        """Keeps `content` under a name."""
        ...


@dataclass(frozen=True, eq=False)
class Extracted:
    """The rows of both sides in another form than the learner's: (n, dimensions) each."""

    private: Features = field(repr=False)
    public: Features = field(repr=False)

    def of_rows(self, chosen: npt.NDArray[np.bool_]) -> Extracted:
        """The same with the chosen private rows alone."""
        return replace(self, private=self.private[chosen])


@dataclass(frozen=True, eq=False)
class SiloRound:
    """What a mechanism sees of the silo in one round."""

    private: Labelled = field(repr=False)
    """D as the learner sees it: features (n, …) and class indices."""
    patients: npt.NDArray[np.int64] = field(repr=False)
    """(n,) whose row it is, counted from 0; row numbers where the unit is the row."""
    public: Features = field(repr=False)
    """U, row by row in the order of the ballot."""
    classes: int
    round_number: int
    """The round, counted from 1."""
    relabel_without: Callable[[int], Labels] = field(repr=False)
    """Trains anew and labels U, had the unit of this number not been there; for estimates of the sensitivity only."""
    build: Callable[[int], AnyLearner] = field(repr=False)
    """An untrained learner as silo.yaml names it, for a seed."""
    kept: KeptFiles = field(repr=False)
    extracted: Extracted | None = field(default=None, repr=False)
    """D and U as the task's extractor sees them; None if the task has none."""
    numbers: Extracted | None = field(default=None, repr=False)
    """D and U as numbers where the learner reads texts; None where it reads numbers itself."""
    labels: Labels | None = field(default=None, repr=False)
    """(rows,) what the silo's method says of U in this round; None where the mechanism does not want it."""
    known: tuple[int, ...] | None = None
    """Indices of the classes the silo knows, in ascending order; None for all. Public: the task says it."""

    def wanted_labels(self) -> Labels:
        """`labels`, for a mechanism that said it wants them (`Mechanism.labels_wanted`)."""
        if self.labels is None:
            raise ValueError("this mechanism was given no labels")
        return self.labels

    def as_numbers(self) -> tuple[Labelled, Features]:
        """D and U for a mechanism with a model of its own, whatever the silo's learner reads."""
        if self.numbers is None:
            return self.private, self.public
        return Labelled(self.numbers.private, self.private.labels), self.numbers.public


@dataclass(frozen=True, eq=False)
class Vote:
    """What may leave. Either labels (rows,), -1 abstaining, perhaps with scores; or a pattern of ones."""

    labels: npt.NDArray[np.integer] | None = None
    ones: Ones | None = None
    """(rows, classes), for the one-hot encoding only."""
    scores: Scores | None = None
    """(rows,) certainties 0 to 15; only ever post-processing of something private."""

    def within(self, known: Sequence[int], shape: BallotShape) -> Vote:
        """The same vote without classes the silo does not know: votes for them become abstentions."""
        if len(known) == shape.classes:
            return self
        if self.ones is not None:
            kept = np.zeros(shape.classes, dtype=np.bool_)
            kept[list(known)] = True
            return replace(self, ones=self.ones & kept)
        labels = np.asarray(self.labels)
        return replace(self, labels=np.where(np.isin(labels, known), labels, ABSTAIN))

    def packed(self, shape: BallotShape) -> bytes:
        """The ballot. Where scores are wanted and there are none, every vote counts alike."""
        if self.ones is not None:
            return pack_one_hot(self.ones, shape)
        if self.labels is None:
            raise ValueError("a vote is labels or a pattern of ones")
        if shape.encoding is Encoding.SCORED and self.scores is not None:
            return pack_scored(self.labels, self.scores, shape)
        return pack(self.labels, shape)


class LabelsWanted(StrEnum):
    """Whether a mechanism works on the labels that the silo's method gives U, which take a training."""

    NEVER = "never"
    """It has a model of its own."""
    TO_VOTE = "to vote"
    TO_PRICE = "to price"
    """The offer depends on them, so they are there before anyone knows whether it can be paid."""


class Mechanism(Protocol):
    """Built for one task (`catalogue.build`) from silo.yaml and the task's scope."""

    name: MechanismName

    @property
    def paid_rounds(self) -> int:
        """In how many rounds a new ballot is bought; afterwards the last one is repeated for nothing."""
        ...

    @property
    def labels_wanted(self) -> LabelsWanted:
        """Whether `SiloRound.labels` must be there, and when."""
        ...

    def misfit(self) -> str:
        """Why this mechanism cannot serve the task, in a sentence; empty if it can."""
        ...

    def offer(self, silo: SiloRound) -> Offer:
        """What the next ballot costs. Trains nothing, except to estimate a sensitivity."""
        ...

    def vote(self, silo: SiloRound, bits: Bits) -> Vote:
        """The ballot of a round whose offer the ledger can pay."""
        ...
