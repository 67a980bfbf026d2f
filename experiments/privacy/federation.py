"""A federation in one process, of the product's own parts: learners, mechanisms, accountant, consensus.

What is left out is what does not change a label: wire, certificates, the ledger's disk. The order of a round
is the trainer's: offer, budget, vote; after the paid rounds the last ballot is repeated. A silo that its
mechanism cannot serve (a budget that pays for no answer, say) abstains throughout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from coordinator.consensus import Tally, TieKey, ballot_weights, form_consensus, majority
from experiments.seeded import SeededBits
from silo_agent.models.catalogue import LearnerSpec, build
from silo_agent.models.protocol import AnyLearner, Features, IterativeLearner, Labelled, Labels
from silo_agent.privacy.mechanisms import catalogue
from silo_agent.privacy.mechanisms.protocol import Mechanism, PrivateSide, Scope
from silo_agent.privacy.nobody import Memory
from silo_agent.privacy.settings import MechanismSettings
from silo_agent.trainer.fedct import Consensus, CoTraining
from silo_agent.trainer.weighing import fit_at_home
from wire.ballot import ABSTAIN, BallotShape, Encoding, pack
from wire.errors import ConfigurationError
from wire.privacy.accounting import epsilon
from wire.privacy.declaration import Declaration, Unit
from wire.privacy.events import Event
from wire.privacy.randomness import Bits


@dataclass(frozen=True)
class Arrangement:
    """What the silos agree on, and what each of them does about privacy."""

    mechanism: MechanismSettings
    encoding: Encoding
    epsilon: float | None
    """Each silo's budget for the whole run; None if the mechanism has none."""
    delta: float
    rounds: int
    learner: LearnerSpec
    local_steps: int = 50


@dataclass(frozen=True, eq=False)
class Course:
    """What a run left behind."""

    shape: BallotShape
    ballots: tuple[tuple[bytes, ...], ...] = field(repr=False)
    """Per round, per silo, as they would leave the hospital."""
    consensus: Consensus = field(repr=False)
    """(rows,) the last one; -1 where there is none."""
    home: tuple[AnyLearner, ...] = field(repr=False)
    """Each silo's own model, trained once more on D and what serves it of the last consensus. It stays at home."""
    epsilon: float
    """What the run cost at `delta`, composed over all releases: the largest of the silos'."""


def hold(
    private: tuple[Labelled, ...],
    public: Features,
    classes: int,
    arrangement: Arrangement,
    seed: int,
    *,
    noise: int | None = None,
    home: bool = True,
) -> Course:
    """Runs a federation. `seed` decides learners and ties; mechanisms draw from `noise`, by default `seed` too.

    `home=False` leaves out the models at the end, where only ballots matter.
    """
    drawn = seed if noise is None else noise
    shape = BallotShape(len(public), classes, arrangement.encoding)
    silos = [
        _Silo(rows, public, shape, arrangement, seed, SeededBits(drawn * 1_000_003 + number))
        for number, rows in enumerate(private)
    ]
    digest = hashlib.sha256(str(seed).encode()).hexdigest()
    ballots: list[tuple[bytes, ...]] = []
    consensus: Consensus = np.full(shape.rows, ABSTAIN)
    for number in range(1, arrangement.rounds + 1):
        ballots.append(tuple(silo.vote(number, consensus) for silo in silos))
        if home:
            for silo in silos:
                silo.keep_pace(number, consensus)
        tally = Tally(shape, certainties=shape.encoding is Encoding.SCORED)
        weights = ballot_weights([silo.declared for silo in silos], classes, shape.encoding)
        for ballot, weight in zip(ballots[-1], weights, strict=True):
            tally.add(ballot, weight)
        consensus = form_consensus(tally, majority, TieKey.of(digest, number))
    return Course(
        shape,
        tuple(ballots),
        consensus,
        tuple(silo.at_home(arrangement.rounds + 1, consensus) for silo in silos if home),
        max(silo.spent for silo in silos),
    )


class _Silo:
    """A hospital's private side over one task."""

    def __init__(
        self,
        rows: Labelled,
        public: Features,
        shape: BallotShape,
        arrangement: Arrangement,
        seed: int,
        bits: Bits,
    ) -> None:
        self._arrangement = arrangement
        self._shape = shape
        self._training = CoTraining(
            rows, public, _building(arrangement, shape, public), arrangement.local_steps, seed
        )
        scope = Scope(
            shape,
            arrangement.rounds,
            arrangement.epsilon,
            arrangement.delta,
            Unit.ROW,
            len(rows),
        )
        self._mechanism = _mechanism(arrangement.mechanism, scope)
        self._takes_part = not self._mechanism.misfit()
        self._bits = bits
        self._kept = Memory()
        self._events: list[Event] = []
        self._paid: set[str] = set()
        self.declared = Declaration()
        """What it said of its latest ballot."""
        self._latest: AnyLearner | None = None
        self._trained = 0
        self._last: bytes | None = None

    @property
    def spent(self) -> float:
        """ε of everything released so far."""
        return _cost(tuple(self._events), self._arrangement.delta)

    def vote(self, number: int, consensus: Consensus) -> bytes:
        """The ballot of a round: bought, repeated, or all abstentions where it cannot be paid for."""
        if self._last is not None and number > self._mechanism.paid_rounds:
            return self._last
        if not self._takes_part:
            return self._abstention
        silo = self._side(number, consensus)
        offer = self._mechanism.offer(silo)
        unpaid = [part for part in offer.once if part.basis not in self._paid]
        events = (*offer.events, *(event for part in unpaid for event in part.events))
        limit, delta = self._arrangement.epsilon, self._arrangement.delta
        if limit is not None and _cost((*self._events, *events), delta) > limit:
            return self._abstention
        self._last = self._mechanism.vote(silo, self._bits).packed(self._shape)
        self._events += events
        self.declared = offer.declaration
        self._paid |= {part.basis for part in unpaid}
        return self._last

    def learner(self, number: int, consensus: Consensus) -> AnyLearner:
        """The silo's own learner of a round; one that continues is trained once a round."""
        if self._latest is not None and self._trained == number:
            return self._latest
        learner = self._training.fit(number, consensus, self._latest)
        if isinstance(learner, IterativeLearner):
            self._latest, self._trained = learner, number
        return learner

    def at_home(self, number: int, consensus: Consensus) -> AnyLearner:
        """The model the silo keeps."""
        training = self._training
        if isinstance(training.build(training.seed), IterativeLearner):
            return self.learner(number, consensus)
        return fit_at_home(training, np.arange(len(training.private)), number, consensus)

    def keep_pace(self, number: int, consensus: Consensus) -> None:
        """A learner that continues takes its steps in every round, also where a mechanism votes without it."""
        if isinstance(self._training.build(self._training.seed), IterativeLearner):
            self.learner(number, consensus)

    @property
    def _abstention(self) -> bytes:
        return pack(np.full(self._shape.rows, ABSTAIN), self._shape)

    def _side(self, number: int, consensus: Consensus) -> PrivateSide:
        def predict() -> Labels:
            labels: Labels = np.asarray(
                self.learner(number, consensus).predict(self._training.public)
            )
            return labels

        def predict_without(unit: int) -> Labels:
            raise ConfigurationError(
                "An experiment relies on no estimate of a sensitivity.",
                "Set sensitivity to worst_case.",
            )

        return PrivateSide(
            private=self._training.private,
            patients=np.arange(len(self._training.private)),
            public=self._training.public,
            classes=self._shape.classes,
            number=number,
            predict=predict,
            predict_without=predict_without,
            build=self._training.build,
            kept=self._kept,
        )


# Both depend on their arguments alone, and hundreds of federations ask for the same few.
@lru_cache(maxsize=64)
def _mechanism(settings: MechanismSettings, scope: Scope) -> Mechanism:
    return catalogue.build(settings, scope)


@lru_cache(maxsize=256)
def _cost(events: tuple[Event, ...], delta: float) -> float:
    return epsilon(events, delta)


def _building(
    arrangement: Arrangement, shape: BallotShape, public: Features
) -> Callable[[int], AnyLearner]:
    return lambda seed: build(arrangement.learner, shape.classes, tuple(public.shape[1:]), seed)
