"""The papers' XOR mechanism: a one-hot ballot whose bits are flipped at random.

If a unit of privacy can change s labels, neighbouring ballots differ in at most 2s bits: a changed label sets one
bit and clears another; one that becomes an abstention (a row of zeros) or ceases to be one changes a single bit,
which is the former with one bit left unseen. A bit flipped with probability p is binary randomised response with
ε = ln((1−p)/p), so a ballot is 2s of them and nothing else. For s = |U| that holds for every learner.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import exp, nextafter
from typing import TypeAlias

import numpy as np

from silo_agent.trainer.privacy.mechanisms.protocol import (
    LabelsWanted,
    Offer,
    Ones,
    Scope,
    Sensitivity,
    SiloRound,
    Vote,
)
from silo_agent.trainer.privacy.mechanisms.row_loss import (
    affordable,
    bought_rounds,
    log_ratio,
    require_budget,
    whole_cost,
)
from silo_agent.trainer.privacy.mechanisms.theta import (
    MOST_CLASSES,
    FlipTable,
    Theta,
    as_matrix,
    flip_table,
    scaled_to,
)
from silo_agent.trainer.privacy.sensitivity import ChangedRows, changed_rows
from silo_agent.trainer.privacy.settings import XorSettings
from wire.ballot import Encoding
from wire.errors import ConfigurationError
from wire.privacy.accounting import epsilon
from wire.privacy.declaration import Declaration, MechanismName
from wire.privacy.events import Event, Pure, RandomizedResponse
from wire.privacy.noise import bernoulli
from wire.privacy.randomness import Bits, SecureBits


@dataclass(frozen=True)
class IndependentFlips:
    """Every bit is flipped with the same probability below ½, whatever the others do."""

    classes: int
    flip: float

    def event(self, changed_rows: int) -> Event:
        """One ballot of which a unit can change that many rows."""
        return _responses(_bit_epsilon(self.flip), changed_rows, self.classes)

    @property
    def mean_flip(self) -> float:
        """How often a bit is flipped."""
        return self.flip

    def draw(self, rows: int, bits: Bits) -> Ones:
        """(rows, C), True where a bit is to be flipped."""
        return bernoulli(self.flip, (rows, self.classes), bits)


Flips: TypeAlias = IndependentFlips | FlipTable


def calibrated_flip(scope: Scope, changed_rows: int, paid_rounds: int) -> float:
    """The smallest flip probability below ½ with which `paid_rounds` ballots cost at most the scope's ε."""
    classes = scope.shape.classes
    allowed = affordable(
        lambda each: _responses(each, changed_rows, classes),
        _changed_bits(changed_rows, classes),
        paid_rounds,
        scope,
    )
    return flip_at(allowed)


def flip_at(bit_epsilon: float) -> float:
    """The least flip probability, below ½, at which a bit costs at most that."""
    flip = 1 / (1 + exp(bit_epsilon))
    while _bit_epsilon(flip) > bit_epsilon:
        flip = nextafter(flip, 0.5)
    return flip


class XorMechanism:
    """One-hot ballots with flipped bits; the noise is silo.yaml's, or what the budget allows.

    With an estimated sensitivity the declared noise tells what was estimated from private rows; that the task is
    marked `estimate` covers this too. `chooser` picks the neighbours an estimate tries, nothing that is released.
    """

    name = MechanismName.XOR

    def __init__(self, settings: XorSettings, scope: Scope, chooser: Bits | None = None) -> None:
        self._settings, self._scope = settings, scope
        self._chooser = chooser or SecureBits()
        self._theta: Theta | None = None
        self._made: dict[int, Flips] = {}
        if settings.theta is not None:
            self._theta = as_matrix(settings.theta)
            if self._theta is None:
                raise ConfigurationError(
                    "privacy.mechanism.theta in silo.yaml is not a symmetric matrix of numbers",
                    "give as many rows as columns, one for each class, and the same number both ways",
                )
        elif settings.flip is None:
            require_budget(scope, self.name, "privacy.mechanism.flip")

    @property
    def paid_rounds(self) -> int:
        """In how many rounds a new ballot is bought."""
        return bought_rounds(self._settings.paid_rounds, self._scope)

    @property
    def labels_wanted(self) -> LabelsWanted:
        """Already for the price, where the sensitivity is estimated from them."""
        empirical = self._settings.sensitivity.source is Sensitivity.EMPIRICAL
        return LabelsWanted.TO_PRICE if empirical else LabelsWanted.TO_VOTE

    def misfit(self) -> str:
        """Why bits cannot be flipped in this task; empty if they can."""
        shape = self._scope.shape
        if shape.encoding is not Encoding.ONE_HOT:
            return f"the mechanism xor flips bits of one_hot ballots and the task wants {shape.encoding}"
        if self._theta is not None and len(self._theta) != shape.classes:
            return f"theta is for {len(self._theta)} classes and the task has {shape.classes}"
        if self._theta is not None and shape.classes > MOST_CLASSES:
            return f"theta serves {MOST_CLASSES} classes at most and the task has {shape.classes}"
        return ""

    def offer(self, silo: SiloRound) -> Offer:
        """One ballot's flips; the declaration speaks of all paid ballots together.

        Its flip rate is the mean over the classes, which differ only under a general Θ.
        """
        changed = self._changed(silo)
        flips = self._flips(changed.count)
        event = flips.event(changed.count)
        worst = [flips.event(self._scope.shape.rows)] * self.paid_rounds
        estimate = changed.source.estimate
        parameters: dict[str, object] = {
            "changed_rows": changed.count,
            "sensitivity": str(changed.source),
            "flip": flips.mean_flip,
            "paid_rounds": self.paid_rounds,
        }
        if isinstance(flips, FlipTable):
            parameters |= {
                "row_epsilon": flips.row_epsilon,
                "flip_rates": flips.flip_rates.tolist(),
            }
        if estimate:
            parameters["worst_case_epsilon"] = epsilon(worst, self._scope.delta)
        return Offer(
            events=(event,),
            declaration=Declaration(
                mechanism=self.name,
                epsilon=whole_cost(event, self.paid_rounds, self._scope),
                delta=self._scope.delta,
                unit=self._scope.unit,
                estimate=estimate,
                one_if_voted=1 - flips.mean_flip,
                one_if_not=flips.mean_flip,
            ),
            sensitivity=changed.source,
            parameters=parameters,
        )

    def vote(self, silo: SiloRound, bits: Bits) -> Vote:
        """The learner's labels, one-hot, with flipped bits; an abstention is a row of zeros before that."""
        labels = silo.wanted_labels()
        ones = labels[:, None] == np.arange(self._scope.shape.classes)
        return Vote(ones=ones ^ self._flips(self._changed(silo).count).draw(len(labels), bits))

    def _changed(self, silo: SiloRound) -> ChangedRows:
        return changed_rows(self._settings.sensitivity, self._scope, silo, self._chooser)

    def _flips(self, count: int) -> Flips:
        if count not in self._made:
            self._made[count] = self._new_flips(count)
        return self._made[count]

    def _new_flips(self, count: int) -> Flips:
        if self._theta is None:
            flip = self._settings.flip or calibrated_flip(self._scope, count, self.paid_rounds)
            return IndependentFlips(self._scope.shape.classes, flip)
        if self._scope.epsilon is None:
            return flip_table(self._theta)
        allowed = affordable(
            lambda each: Pure(epsilon=each, count=count), count, self.paid_rounds, self._scope
        )
        return scaled_to(self._theta, allowed)[1]


def _bit_epsilon(flip: float) -> float:
    return log_ratio(1 - Fraction(flip), Fraction(flip))


def _changed_bits(changed_rows: int, classes: int) -> int:
    """Bits by which ballots can differ: two a row; one where there is one class, to vote for or not."""
    return min(2, classes) * changed_rows


def _responses(each: float, changed_rows: int, classes: int) -> Event:
    return RandomizedResponse(buckets=2, epsilon=each, count=_changed_bits(changed_rows, classes))
