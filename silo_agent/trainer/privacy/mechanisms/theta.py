"""Flips that depend on one another within a row: P(b) ∝ exp(bᵀΘb), from a table of all 2^C patterns.

The table holds integers, and a pattern is drawn with exactly its share of their sum; ε is derived from the
integers. So it makes no difference to the guarantee that they are only close to what Θ asks for (to 2⁻⁶² of the
whole each), nor how exp was rounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from silo_agent.trainer.privacy.mechanisms.protocol import Ones
from wire.privacy.events import Event, Pure
from wire.privacy.noise import uniform_below
from wire.privacy.randomness import Bits

Theta: TypeAlias = npt.NDArray[np.float64]
Patterns: TypeAlias = npt.NDArray[np.int64]

MOST_CLASSES: Final = 16
_WHOLE: Final = 1 << 62
_LOGARITHM_ERROR: Final = 1e-12
"""Far above the error of a difference of two float logarithms of numbers up to 2⁶² (some 10⁻¹⁴)."""


@dataclass(frozen=True, eq=False)
class FlipTable:
    """How often each pattern of flips is drawn; pattern x flips class a if bit a of x is set."""

    weights: Patterns
    """(2^C,) positive integers whose sum is below 2⁶³."""

    @property
    def classes(self) -> int:
        """C."""
        return int(self.weights.size).bit_length() - 1

    @property
    def row_epsilon(self) -> float:
        """ε of one row, over any two of the C + 1 rows a learner can cast: a class, or an abstention.

        Two classes differ in two bits; a class and an abstention in one, which for a general Θ can cost more.
        """
        return _steepest(np.log(self.weights.astype(np.float64))) + _LOGARITHM_ERROR

    def event(self, changed_rows: int) -> Event:
        """One ballot of which a unit can change that many rows."""
        return Pure(epsilon=self.row_epsilon, count=changed_rows)

    @property
    def flip_rates(self) -> npt.NDArray[np.float64]:
        """(C,) how often the bit of each class is flipped."""
        shares = self.weights / float(self.weights.sum())
        return shares @ _bits(self.classes)

    @property
    def mean_flip(self) -> float:
        """How often a bit is flipped, on average over the classes."""
        return float(self.flip_rates.mean())

    def draw(self, rows: int, bits: Bits) -> Ones:
        """(rows, C), True where a bit is to be flipped."""
        ends = np.cumsum(self.weights)
        drawn = uniform_below(int(ends[-1]), rows, bits)
        patterns = np.searchsorted(ends, drawn, side="right")
        return (patterns[:, None] >> np.arange(self.classes) & 1).astype(np.bool_)


def flip_table(theta: Theta) -> FlipTable:
    """The table nearest to P(b) ∝ exp(bᵀΘb); every pattern stays possible."""
    exponents = _exponents(theta)
    shares = np.exp(exponents - exponents.max())
    shares /= shares.sum()
    return FlipTable(np.maximum(1, np.floor(shares * _WHOLE)).astype(np.int64))


def scaled_to(theta: Theta, row_epsilon: float) -> tuple[float, FlipTable]:
    """The largest factor f, to 10⁻⁹, for which the table of f·Θ costs at most `row_epsilon`; and that table.

    A Θ whose flips hide everything, as a fair coin does, is left as it is.
    """
    table, steepest = flip_table(theta), _steepest(_exponents(theta))
    if steepest < _LOGARITHM_ERROR and table.row_epsilon <= row_epsilon:
        return 1.0, table
    factor, short = row_epsilon / steepest, 1e-9
    while True:
        # The exponents scale with f; whole numbers follow them closely, except in patterns that hardly occur.
        table = flip_table(factor * (1 - short) * theta)
        if table.row_epsilon <= row_epsilon:
            return factor * (1 - short), table
        short = min(2 * short, (1 + short) / 2)


def papers_condition(theta: Theta, changed_bits: int) -> float:
    """ε by the papers' Corollary 1, s·‖λ(Θ)‖₂ with s in bits, two a label. Too small by up to √(C−1); not used."""
    return changed_bits * float(np.linalg.norm(np.linalg.eigvalsh(theta)))


def closed_form(theta: Theta, changed_rows: int) -> float:
    """A sound bound for C ≥ 2, 2s√(C−1)·‖Θ‖_F, for comparison; `row_epsilon` is never above it.

    By Cauchy's inequality. Setting bits a and b adds Θaa + Θbb + 2Θab + 2Σ xj(Θaj + Θbj) to the exponent: 4(C−1)
    once every pair Θaj = Θja is weighed as ‖Θ‖_F does. Moving a one from b to a gives 4C−6, one bit alone 2C−1.
    """
    return 2 * changed_rows * math.sqrt(len(theta) - 1) * float(np.linalg.norm(theta))


def as_matrix(theta: Sequence[Sequence[float]]) -> Theta | None:
    """A square, symmetric, finite Θ as an array; None if it is not one."""
    if any(len(row) != len(theta) for row in theta):
        return None
    matrix = np.array(theta, dtype=np.float64)
    return matrix if np.isfinite(matrix).all() and np.array_equal(matrix, matrix.T) else None


def _bits(classes: int) -> npt.NDArray[np.float64]:
    """(2^C, C) the bits of every pattern."""
    return (np.arange(1 << classes)[:, None] >> np.arange(classes) & 1).astype(np.float64)


def _exponents(theta: Theta) -> npt.NDArray[np.float64]:
    bits = _bits(len(theta))
    exponents: npt.NDArray[np.float64] = ((bits @ theta) * bits).sum(axis=1)
    return exponents


def _steepest(values: npt.NDArray[np.float64]) -> float:
    """The largest difference between two patterns that one bit or two bits set apart."""
    patterns = np.arange(values.size)
    single = [1 << place for place in range(int(values.size).bit_length() - 1)]
    masks = [*single, *(first | second for first, second in combinations(single, 2))]
    return max(float(np.abs(values - values[patterns ^ mask]).max()) for mask in masks)
