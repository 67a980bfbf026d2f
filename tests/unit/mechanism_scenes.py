"""Small tasks and silos in which everything a mechanism can answer can be written down."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import TypeAlias

import numpy as np
from scipy import stats

from silo_agent.trainer.models.protocol import Labelled, Labels
from silo_agent.trainer.privacy.mechanisms.protocol import Mechanism, Scope, SiloRound, Vote
from wire.ballot import BallotShape, Encoding
from wire.privacy.declaration import Unit
from wire.privacy.randomness import Bits

Outcome: TypeAlias = tuple[int, ...]
Law: TypeAlias = Mapping[Outcome, float]
SURPRISE = 1e-6
"""A fixed seed whose draws are less likely than this would be a defect."""


@dataclass
class Kept:
    """`KeptFiles` in memory."""

    content: dict[str, bytes] = field(default_factory=dict)

    def get(self, name: str) -> bytes | None:
        return self.content.get(name)

    def put(self, name: str, content: bytes) -> None:
        self.content[name] = content


def a_scope(
    rows: int,
    classes: int,
    *,
    epsilon: float | None = None,
    delta: float = 1e-5,
    rounds: int = 1,
    encoding: Encoding = Encoding.ONE_HOT,
    units: int = 20,
) -> Scope:
    return Scope(BallotShape(rows, classes, encoding), rounds, epsilon, delta, Unit.PATIENT, units)


def a_silo(
    labels: Iterable[int],
    *,
    without: Callable[[int], Labels] | None = None,
    kept: Kept | None = None,
    units: int = 4,
) -> SiloRound:
    """A silo whose learner says just this."""
    said = np.array(tuple(labels), dtype=np.int64)

    def not_estimated(unit: int) -> Labels:
        raise AssertionError(f"unit {unit} was left out though nothing is estimated")

    def no_learner(seed: int) -> None:
        raise AssertionError("no learner is needed")

    return SiloRound(
        private=Labelled(np.zeros((units, 1)), np.zeros(units, dtype=np.int64)),
        patients=np.arange(units),
        public=np.zeros((len(said), 1)),
        classes=2,
        round_number=1,
        labels=said,
        relabel_without=without or not_estimated,
        build=no_learner,  # type: ignore[arg-type]
        kept=kept or Kept(),
    )


def every_ballot(rows: int, classes: int) -> list[Outcome]:
    """All labellings, -1 (an abstention) among them."""
    return list(product(range(-1, classes), repeat=rows))


def rows_apart(first: Outcome, second: Outcome) -> int:
    return sum(a != b for a, b in zip(first, second, strict=True))


def dearest(laws: Mapping[Outcome, Law], changed_rows: int) -> float:
    """The largest log ratio of probabilities over all outputs and ballots at most `changed_rows` apart."""
    return max(
        math.log(chance / laws[second][outcome])
        for first, second in product(laws, repeat=2)
        if rows_apart(first, second) <= changed_rows
        for outcome, chance in laws[first].items()
    )


def largest_delta(laws: Mapping[Outcome, Law], changed_rows: int, epsilon: float) -> float:
    """The largest hockey-stick divergence at e^ε over all ballots at most `changed_rows` apart."""
    return max(
        math.fsum(
            max(0.0, chance - math.exp(epsilon) * laws[second][outcome])
            for outcome, chance in laws[first].items()
        )
        for first, second in product(laws, repeat=2)
        if rows_apart(first, second) <= changed_rows
    )


def rows_together(row_laws: Mapping[int, Law], labels: Outcome) -> Law:
    """The law of a ballot whose rows are answered independently."""
    whole: dict[Outcome, float] = {(): 1.0}
    for label in labels:
        whole = {
            so_far + outcome: chance * more
            for so_far, chance in whole.items()
            for outcome, more in row_laws[label].items()
        }
    return whole


def flat(vote: Vote) -> Outcome:
    """A vote as a tuple: its ones row by row, or its labels."""
    answered = vote.labels if vote.ones is None else vote.ones
    assert answered is not None
    return tuple(int(value) for value in answered.ravel())


def surprise(drawn: Counter[Outcome], law: Law) -> float:
    """How likely draws at least so far from the law are; 0 for one the law does not know."""
    if set(drawn) - set(law):
        return 0.0
    total = sum(drawn.values())
    expected = np.array([law[outcome] * total for outcome in law])
    assert expected.min() > 5, "too few draws for a chi-square"
    return float(stats.chisquare([drawn[outcome] for outcome in law], expected).pvalue)


def votes_of(mechanism: Mechanism, labels: Outcome, bits: Bits, times: int) -> Counter[Outcome]:
    """What a mechanism answers, many times over."""
    silo = a_silo(labels)
    return Counter(flat(mechanism.vote(silo, bits)) for _ in range(times))
