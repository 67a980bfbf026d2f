"""How much one answer may give away: read off its probabilities, or found from what a task may cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Final

from silo_agent.trainer.privacy.mechanisms.protocol import Scope
from wire.errors import ConfigurationError
from wire.privacy.accounting import calibrate, epsilon
from wire.privacy.declaration import MechanismName
from wire.privacy.events import Event

LARGEST: Final = 40.0
"""No budget is spent on less noise than this ε of a single answer leaves: one lie in 10¹⁷."""


def log_ratio(likelier: Fraction, other: Fraction) -> float:
    """ln(likelier / other), from the probabilities a sampler really uses; rounded up, never down."""
    if not likelier > other > 0:
        raise ValueError(f"{likelier} is not above {other}, or {other} is not above 0")
    # The difference is exact, so log1p sees all digits even where the two are almost equal; six roundings
    # at most follow, none of them larger than a unit in the last place.
    return math.log1p(float((likelier - other) / other)) * (1 + 2.0**-49)


def affordable(
    event: Callable[[float], Event], answers: int, paid_rounds: int, scope: Scope
) -> float:
    """The largest ε of one answer with which `paid_rounds` ballots cost at most the scope's ε.

    `event(ε)` is one ballot of `answers` answers, each of them ε-private; the scope must have an ε.
    """
    if scope.epsilon is None:
        raise ValueError("there is no budget to share out")
    # What a plain sum allows always holds; composing exactly allows more, often far more.
    least = scope.epsilon / (answers * paid_rounds) * (1 - 1e-9)
    if least >= LARGEST:
        return LARGEST
    noise = calibrate(
        lambda noise: [event(1 / noise)] * paid_rounds,
        scope.epsilon,
        scope.delta,
        1 / LARGEST,
        1 / least,
    )
    return least if noise is None else 1 / noise


def whole_cost(event: Event, paid_rounds: int, scope: Scope) -> float:
    """ε of all paid ballots of a task together; never above the budget, at which the ledger stops them."""
    # δ may pay for everything; the wire keeps millionths and has no ε of 0.
    cost = max(epsilon([event] * paid_rounds, scope.delta), 1e-6)
    return cost if scope.epsilon is None else min(cost, scope.epsilon)


def bought_rounds(wanted: int | None, scope: Scope) -> int:
    """How many of a task's rounds buy a ballot: as many as silo.yaml says, at most all."""
    return scope.rounds if wanted is None else min(wanted, scope.rounds)


def require_budget(scope: Scope, mechanism: MechanismName, options: str) -> None:
    """ConfigurationError where neither a budget nor an option decides the noise."""
    if scope.epsilon is None:
        raise ConfigurationError(
            f"nothing in silo.yaml says how much noise the mechanism {mechanism} adds",
            f"set privacy.epsilon, the budget of a task, or {options}",
        )
