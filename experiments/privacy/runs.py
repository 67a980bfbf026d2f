"""Which runs a plot of a privacy experiment consists of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol


class MayBePrivate(Protocol):
    """A method, or a kind of message."""

    @property
    def private(self) -> bool:
        """Whether it has an ε."""


def runs(
    name: str, kinds: Iterable[MayBePrivate], budgets: Sequence[float], seeds: int
) -> list[dict[str, Any]]:
    """`name` (a kind), `budget` and `seed` of every run; the budget is None where there is no ε.

    Seeds are outermost, so that an unfinished table is balanced.
    """
    return [
        {name: kind, "budget": budget, "seed": seed}
        for seed in range(seeds)
        for kind in kinds
        for budget in (budgets if kind.private else (None,))
    ]
