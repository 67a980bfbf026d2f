"""What an ε means in odds: how far a suspicion about one patient can move, at most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from silo_agent.trainer.explain.words import detected, factor

PRIORS = (0.01, 0.1, 0.5)
"""How sure somebody is before."""


@dataclass(frozen=True)
class Odds:
    """(ε, δ) for a person; everything holds except with probability δ."""

    epsilon: float
    delta: float

    def sure(self, before: float) -> float:
        """How sure one can be afterwards who was `before` sure, at most: odds grow by the factor e^ε."""
        return before / (before + (1 - before) * math.exp(-self.epsilon))

    @property
    def detected(self) -> float:
        """Share of members found by a test that is wrong about one outsider in a hundred, at most."""
        return detected(self.epsilon, self.delta, 0.01)

    def cells(self) -> dict[str, str]:
        """One line of a table."""
        return {
            "ε": f"{self.epsilon:g}",
            "odds times (e^ε)": factor(self.epsilon),
            **{
                f"{before * 100:.0f} % sure becomes": _share(self.sure(before)) for before in PRIORS
            },
            "found at 1 % false alarms": _share(self.detected),
        }


def as_markdown(lines: Sequence[Odds]) -> str:
    """The table as docs/privacy.md has it."""
    cells = [line.cells() for line in lines]
    rows = [list(cells[0]), ["---:"] * len(cells[0]), *(list(line.values()) for line in cells)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _share(value: float) -> str:
    """Per cent, rounded up; 100 % only where nothing is left open."""
    percent = math.ceil(value * 1000) / 10
    if percent >= 100 > value * 100:
        percent = math.ceil(value * 100_000) / 1000
    return f"{percent:.6g} %"
