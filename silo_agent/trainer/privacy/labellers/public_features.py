"""Features learned from the public set alone, as integers: what becomes of a row is that row's own affair.

A row is standardised as U is, projected on U's leading principal axes, partly whitened, and cut to a norm that is
a quantile of U's: nothing here has seen a private row, and a private row that lies outside is cut like any other.
Whatever numbers U and the row hold, features are finite and their norm is bounded.

Every sum below is one of integers whose partial sums stay under 2⁵³, so it is exact in whatever order a BLAS
takes it. Otherwise one patient's rows could change how the next one's are blocked and rounded, and then the
sensitivity of whatever is summed over patients would not be one patient's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from scipy.linalg import eigh

from silo_agent.trainer.models.protocol import Features
from silo_agent.trainer.privacy.bounded import Floats, finite_rows

NORM: Final = 1 << 10
"""Grains: the largest Euclidean norm of a row's features, the constant one apart."""
CONSTANT: Final = NORM // 5
"""Grains: the last feature, the same in every row."""
WHITENING: Final = 0.6
"""0 leaves the principal components as they are, 1 gives all of them the same variance."""
QUANTILE: Final = 0.5
"""Share of the public rows that is not cut."""

_FURTHEST: Final = 8.0
"""Standard deviations beyond which a value counts as this far."""
_PLACES: Final = 1 << 8
"""Places per standard deviation: a standardised value is an integer below 2¹¹."""
_AXIS: Final = 1 << 24
"""The largest entry of an axis."""
_FARTHEST: Final = 1 << 20
"""Grains beyond which a projection counts as this far: 4096 squares still add up to less than 2⁵³."""
_WIDE: Final = 2048
_FITTED_ROWS: Final = 10_000
_CHUNK: Final = 4096


@dataclass(frozen=True, eq=False)
class PublicFeatures:
    """A map from rows, flat or images, to integers; picklable."""

    centre: Floats = field(repr=False)
    """(d,)"""
    spread: Floats = field(repr=False)
    """(d,) what counts as one: ∞ where U is constant, so that nothing there does."""
    axes: Floats = field(repr=False)
    """(d, k) integers."""
    grain: float
    """What a projection is multiplied with to be in grains."""

    @classmethod
    def fitted(cls, public: Features, components: int) -> PublicFeatures:
        """Learns from U; at most `components` axes, fewer if U has fewer."""
        rows = finite_rows(public[:: -(-len(public) // _FITTED_ROWS)])
        centre, spread = rows.mean(axis=0), _spread(rows)
        standard = _standardised(rows, centre, spread)
        values, vectors = _principal(standard, components)
        # A floor under the variances: the last of them are U's own sampling noise.
        axes = vectors / (values + 1e-3 * values[:1]) ** (WHITENING / 2)
        axes = np.rint(axes * (_AXIS / max(np.abs(axes).max(initial=0.0), 1e-300)))
        lengths = np.linalg.norm(standard @ axes, axis=1)
        typical = float(np.quantile(lengths, QUANTILE)) or float(lengths.max()) or 1.0
        return cls(centre, spread, axes, NORM / typical)

    @property
    def width(self) -> int:
        """Number of features, the constant one included."""
        return int(self.axes.shape[1]) + 1

    def grains(self, rows: Features) -> Floats:
        """(n, width) integers: all but the last have norm at most NORM, and the last is CONSTANT."""
        features = np.empty((len(rows), self.width))
        features[:, -1] = CONSTANT
        for start in range(0, len(rows), _CHUNK):
            part = slice(start, start + _CHUNK)
            standard = _standardised(finite_rows(rows[part]), self.centre, self.spread)
            features[part, :-1] = _cut(standard @ self.axes * self.grain)
        return features


def _spread(rows: Floats) -> Floats:
    """Standard deviations; of two values half their distance, so that a rare category does not count for more."""
    lowest, highest = rows.min(axis=0), rows.max(axis=0)
    two_values = np.all((rows == lowest) | (rows == highest), axis=0)
    spread = np.where(two_values, (highest - lowest) / 2, rows.std(axis=0))
    return np.where(spread > 1e-9 * np.maximum(1.0, np.abs(highest)), spread, np.inf)


def _standardised(rows: Floats, centre: Floats, spread: Floats) -> Floats:
    """Integers: `_PLACES` to a standard deviation."""
    deviations = np.clip((rows - centre) / spread, -_FURTHEST, _FURTHEST)
    return np.rint(deviations * _PLACES)


def _principal(standard: Floats, components: int) -> tuple[Floats, Floats]:
    """Variances (k,), largest first, and axes (d, k) of U; directions without variance are left out."""
    # U is public: a part of it may stand for the whole where its rows are very wide.
    if standard.shape[1] > _WIDE:
        standard = standard[:: -(-len(standard) // _WIDE)]
    rows, width = standard.shape
    wide = width > rows
    products = (standard @ standard.T if wide else standard.T @ standard) / rows
    size = len(products)
    values, vectors = eigh(products, subset_by_index=(max(0, size - components), size - 1))
    values, vectors = values[::-1], vectors[:, ::-1]
    found = values > 1e-6 * max(values[0], 1e-300)
    values, vectors = values[found], vectors[:, found]
    if wide:
        vectors = standard.T @ vectors / np.sqrt(rows * values)
    return values, vectors


def _cut(projected: Floats) -> Floats:
    """Whole grains of norm at most NORM, towards zero.

    The squares add up exactly. Cutting errs by less than a part in 2⁵⁰ before it truncates, so the new sum of
    squares is below NORM²·(1 + 2⁻⁴⁹); it is an integer and therefore at most NORM².
    """
    whole = np.trunc(np.clip(projected, -_FARTHEST, _FARTHEST))
    norms = np.sqrt(np.sum(whole * whole, axis=1, keepdims=True))
    return np.where(norms > NORM, np.trunc(whole * (NORM / np.maximum(norms, 1.0))), whole)
