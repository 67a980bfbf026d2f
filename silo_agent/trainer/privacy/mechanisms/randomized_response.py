"""Randomised response: every label of a ballot is answered for itself, truthfully or not.

One patient may change every label, so a ballot is |U| answers of which each counts (no estimate is involved).

k-ary: the label, or one of the other C−1. A learner that abstains answers with a class drawn at random: a mixture
of C answers, none of which is further from any label's answer than two labels' are (divergences are convex).

Unary ("optimised", Wang et al. 2017): a row of bits, of which the label's is one with probability ½ and every other
with q = 1/(e^ε+1). For two labels the loss is +ε with probability (1−q)/2, −ε with q/2 and 0 with ½, and that is the
event (`UnaryResponse`). An abstention is a row without a likely bit: two labels' rows with one of the two bits left
unseen, which costs less. Earlier versions charged k-ary response with ⌊e^ε⌋+3 buckets, up to a seventh more.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import exp, nextafter

import numpy as np

from silo_agent.trainer.models.protocol import Labels
from silo_agent.trainer.privacy.mechanisms.protocol import (
    LabelsWanted,
    Offer,
    Scope,
    Sensitivity,
    SiloRound,
    Vote,
)
from silo_agent.trainer.privacy.mechanisms.row_loss import (
    LARGEST,
    affordable,
    bought_rounds,
    log_ratio,
    require_budget,
    whole_cost,
)
from silo_agent.trainer.privacy.settings import RandomizedResponseSettings
from wire.ballot import ABSTAIN, Encoding
from wire.privacy.declaration import Declaration, MechanismName
from wire.privacy.events import Event, RandomizedResponse, UnaryResponse
from wire.privacy.noise import bernoulli, uniform_below
from wire.privacy.randomness import Bits


class Answer(StrEnum):
    """How a single label is answered."""

    K_ARY = "k_ary"
    UNARY = "unary"


@dataclass(frozen=True)
class Response:
    """One row's answer: the two probabilities decide everything else."""

    kind: Answer
    classes: int
    one_if_voted: float
    """Probability that the answer names the label (k-ary), or that the label's bit is one (unary: ½)."""
    one_if_not: float
    """The same for any class that is not the label; for k-ary (1 − one_if_voted)/(C−1), up to rounding."""

    @property
    def row_epsilon(self) -> float:
        """ε of one row, from the probabilities in use."""
        if self.kind is Answer.UNARY:
            return log_ratio(1 - Fraction(self.one_if_not), Fraction(self.one_if_not))
        truthful = Fraction(self.one_if_voted)
        return log_ratio(truthful, (1 - truthful) / (self.classes - 1))

    @property
    def variance(self) -> float:
        """Of the estimated share of a class that few rows have, times the number of rows (Wang et al. 2017)."""
        high, low = self.one_if_voted, self.one_if_not
        return low * (1 - low) / (high - low) ** 2

    def event(self, rows: int) -> Event:
        """One ballot: every row is an answer, and every one may be changed by one patient."""
        return _event(self.kind, self.classes, self.row_epsilon, rows)

    def vote(self, labels: Labels, bits: Bits) -> Vote:
        """The answers for (rows,) labels, -1 where the learner abstains."""
        rows, classes = len(labels), self.classes
        if self.kind is Answer.UNARY:
            voted = labels[:, None] == np.arange(classes)
            likely = bernoulli(self.one_if_voted, (rows, classes), bits)
            unlikely = bernoulli(self.one_if_not, (rows, classes), bits)
            return Vote(ones=np.where(voted, likely, unlikely))
        meant = np.where(labels == ABSTAIN, uniform_below(classes, rows, bits), labels)
        truthful = bernoulli(self.one_if_voted, rows, bits)
        # 1..C−1 places further, round the classes: each of the others alike.
        others = (meant + 1 + uniform_below(classes - 1, rows, bits)) % classes
        return Vote(labels=np.where(truthful, meant, others))


def response(kind: Answer, classes: int, row_epsilon: float) -> Response:
    """The answer that costs at most `row_epsilon` a row, and hardly less; 2 classes at least."""
    if classes < 2:
        raise ValueError("with one class there is nothing to answer")
    wanted = min(row_epsilon, LARGEST)
    others = classes - 1
    high, low = 0.5, 1 / (exp(wanted) + 1)
    if kind is Answer.K_ARY:
        high = 1 / (1 + others * exp(-wanted))
        low = (1 - high) / others
    found = Response(kind, classes, high, low)
    while found.row_epsilon > row_epsilon:
        # The last bit is given to privacy.
        if kind is Answer.K_ARY:
            high = nextafter(high, 0.0)
            low = (1 - high) / others
        else:
            low = nextafter(low, 0.5)
        found = Response(kind, classes, high, low)
    return found


def calibrated_response(scope: Scope, paid_rounds: int) -> Response:
    """The most accurate answers with which `paid_rounds` ballots cost at most the scope's ε.

    Each kind gets the row ε that its own composition affords, so unary wins more seldom than the rule of
    Wang et al. (k-ary iff C < 3e^ε + 2), which compares the two at one ε.
    """
    rows, classes = scope.shape.rows, scope.shape.classes

    def calibrated(kind: Answer) -> Response:
        each = affordable(lambda each: _event(kind, classes, each, rows), rows, paid_rounds, scope)
        return response(kind, classes, each)

    return min(map(calibrated, _kinds(scope)), key=lambda found: found.variance)


class RandomizedResponseMechanism:
    """Ballots of answers that may be lies; sound for every learner."""

    name = MechanismName.RANDOMIZED_RESPONSE
    labels_wanted = LabelsWanted.TO_VOTE

    def __init__(self, settings: RandomizedResponseSettings, scope: Scope) -> None:
        self._settings, self._scope = settings, scope
        self._made: Response | None = None
        if settings.row_epsilon is None:
            require_budget(scope, self.name, "privacy.mechanism.row_epsilon")

    @property
    def paid_rounds(self) -> int:
        """In how many rounds a new ballot is bought."""
        return bought_rounds(self._settings.paid_rounds, self._scope)

    def misfit(self) -> str:
        """Why there is nothing to answer in this task; empty if there is."""
        if self._scope.shape.classes < 2:
            return (
                "the mechanism randomized_response needs two classes at least and the task has one"
            )
        return ""

    def offer(self, silo: SiloRound) -> Offer:
        """One ballot's answers; the declaration speaks of all paid ballots together."""
        answers, scope = self._response(), self._scope
        event = answers.event(scope.shape.rows)
        return Offer(
            events=(event,),
            declaration=Declaration(
                mechanism=self.name,
                epsilon=whole_cost(event, self.paid_rounds, scope),
                delta=scope.delta,
                unit=scope.unit,
                one_if_voted=answers.one_if_voted,
                one_if_not=answers.one_if_not,
            ),
            sensitivity=Sensitivity.WORST_CASE,
            parameters={
                "changed_rows": scope.shape.rows,
                "kind": str(answers.kind),
                "row_epsilon": answers.row_epsilon,
                "one_if_voted": answers.one_if_voted,
                "one_if_not": answers.one_if_not,
                "paid_rounds": self.paid_rounds,
            },
        )

    def vote(self, silo: SiloRound, bits: Bits) -> Vote:
        """Answers in place of the learner's labels."""
        return self._response().vote(silo.wanted_labels(), bits)

    def _response(self) -> Response:
        if self._made is None:
            self._made = self._new_response()
        return self._made

    def _new_response(self) -> Response:
        each, classes = self._settings.row_epsilon, self._scope.shape.classes
        if each is None:
            return calibrated_response(self._scope, self.paid_rounds)
        found = (response(kind, classes, each) for kind in _kinds(self._scope))
        return min(found, key=lambda answers: answers.variance)


def _kinds(scope: Scope) -> tuple[Answer, ...]:
    """Answers the task's ballots can hold; a pattern of ones needs a one-hot ballot."""
    one_hot = scope.shape.encoding is Encoding.ONE_HOT
    return (Answer.K_ARY, Answer.UNARY) if one_hot else (Answer.K_ARY,)


def _event(kind: Answer, classes: int, each: float, rows: int) -> Event:
    if kind is Answer.UNARY:
        return UnaryResponse(epsilon=each, count=rows)
    return RandomizedResponse(buckets=classes, epsilon=each, count=rows)
