"""A trained DP-EBM as plain numbers: picklable, small, and read without interpret."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.special import expit

from silo_agent.trainer.models.protocol import Features
from silo_agent.trainer.privacy.bounded import Floats, finite_rows
from silo_agent.trainer.privacy.labellers.protocol import Probabilities


@dataclass(frozen=True, eq=False)
class Shape:
    """What one column adds to the log-odds: `scores[k]` from cut k − 1 up to, but not at, cut k."""

    column: int
    cuts: Floats
    scores: Floats


@dataclass(frozen=True, eq=False)
class Problem:
    """The log-odds of yes: an intercept and one shape per column."""

    intercept: float
    shapes: tuple[Shape, ...]

    def log_odds(self, rows: Floats) -> Floats:
        """(n,), for flat rows."""
        odds = np.full(len(rows), self.intercept)
        for shape in self.shapes:
            odds += shape.scores[np.searchsorted(shape.cuts, rows[:, shape.column], side="right")]
        return odds


@dataclass(frozen=True, eq=False)
class EbmHead:
    """One problem (class 1?) for two classes, else one per class, against the rest."""

    classes: int
    lower: Floats
    """Per column: rows are clipped to what U spans."""
    upper: Floats
    problems: tuple[Problem, ...] = field(repr=False)

    def probabilities(self, rows: Features, /) -> Probabilities:
        """(n, classes), each row adding up to 1."""
        flat = clipped(rows, self.lower, self.upper)
        odds = np.stack([problem.log_odds(flat) for problem in self.problems], axis=1)
        if self.classes == 2:
            odds = np.hstack([-odds, odds])
        # A floor: where every problem says no, all classes are equally likely instead of 0 / 0.
        chances = expit(odds) + 1e-9
        return np.asarray(chances / chances.sum(axis=1, keepdims=True))


def clipped(rows: Features, lower: Floats, upper: Floats) -> Floats:
    """(n, columns): flat, finite and within the bounds."""
    return np.clip(finite_rows(rows), lower, upper)
