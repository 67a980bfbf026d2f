"""What a certainty model sees of rows: which of U it is trained against, and features whose bounds come from U alone."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from silo_agent.trainer.models.protocol import Features
from silo_agent.trainer.privacy.bounded import Floats, finite, finite_rows

Rows: TypeAlias = npt.NDArray[np.int64]

WHITENING: Final = 0.6
"""0 leaves the features as they are, 1 gives all directions the same variance; as in `labellers.public_features`."""
FLOOR: Final = 1e-3
"""Of the largest variance."""
_FARTHEST: Final = 1e30
"""Beyond what any extractor gives; squares still add up."""
_LAST_BITS: Final = 1e-12


def negatives(rows: int, share: float, public_set: str) -> Rows:
    """D⁻: numbers of the public rows certainties are learned against, ascending; at least one, never all.

    Drawn from the public set's digest, so that every silo has the same ones and abstains on the same ones.
    """
    drawn = hashlib.shake_256(f"consilium negatives {public_set}".encode()).digest(8 * rows)
    order = np.argsort(np.frombuffer(drawn, dtype="<u8"), kind="stable")
    return np.sort(order[: negative_rows(rows, share)]).astype(np.int64)


def negative_rows(rows: int, share: float) -> int:
    """|D⁻| for a public set of so many rows."""
    return max(1, min(rows - 1, round(share * rows)))


@dataclass(frozen=True, eq=False)
class PublicView:
    """h̃₀: the extractor's features, centred as U is, partly whitened, and cut to norm 1. All of it comes from U.

    Whitened in part, since the noise is alike in all directions and a model as short as λ keeps it follows the few
    strongest ones. The norm that counts as 1 is the median of U's, not the largest: one odd row of U would shrink all
    others and the noise, which is made for norm 1, would count for more. (The paper's largest norm over *private*
    rows depends on them, and what that does to everyone's features is in no sensitivity.)
    """

    centre: Floats = field(repr=False)
    """(d,)"""
    whitening: Floats = field(repr=False)
    """(d, d) symmetric: a power of U's covariance, which has no sign or order that another machine may choose."""
    norm: float

    @classmethod
    def of(cls, public: Features) -> Self:
        """From U's features alone."""
        rows = _numbers(public)
        centre = rows.mean(axis=0)
        centred = rows - centre
        variances, axes = np.linalg.eigh(centred.T @ centred / len(rows))
        # A floor under the variances: the last of them are U's own sampling noise.
        floor = FLOOR * max(float(variances[-1]), 1e-300)
        powers = (np.maximum(variances, 0.0) + floor) ** (-WHITENING / 2)
        whitening = (axes * powers) @ axes.T
        lengths = np.linalg.norm(centred @ whitening, axis=1)
        norm = float(np.median(lengths)) or float(lengths.max()) or 1.0
        return cls(centre, whitening, norm)

    def rows(self, features: Features) -> Floats:
        """(n, d), each of norm at most 1 and, up to the last bits of floats, its own affair."""
        with np.errstate(over="ignore", invalid="ignore"):
            seen = (_numbers(features) - self.centre) @ self.whitening / self.norm
        return _cut(finite(seen))


def _cut(seen: Floats) -> Floats:
    """Rows of norm at most 1; the last look at each before they are summed over patients."""
    lengths = np.sqrt(np.sum(seen * seen, axis=1, keepdims=True))
    cut = seen / np.maximum(lengths, 1.0)
    sound = np.sum(cut * cut, axis=1, keepdims=True) <= 1 + _LAST_BITS
    return np.where(sound, cut, 0.0)


def _numbers(features: Features) -> Floats:
    return finite_rows(features, _FARTHEST)
