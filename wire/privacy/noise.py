"""Exact integer noise: rounded Gaussians and Laplaces, coins and draws, from random bits and nothing else.

Why integers: a float sum `answer + noise` betrays in its last bits which answer it was (Mironov 2012). Here an
answer is first put on a public grid, an integer number of grains x, and round(Z) is added, Z being continuous
noise. For an integer x, x + round(Z) = round(x + Z): post-processing of the ideal mechanism, so that its
guarantee holds as it stands, and every answer can give every number.

Why exact: a uniform V with infinitely many bits decides each draw. Its first 63 bits usually suffice: |Z| is the
quantile of V, computed in floating point with a known margin of error (`_margin`). Only where a rounding
boundary lies within that margin are more bits drawn and V compared with the boundary's own tail probability in
as many digits as it takes. So the distribution is that of round(Z), up to the quality of the bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import mpmath
import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from wire.privacy.randomness import Bits

Integers: TypeAlias = npt.NDArray[np.int64]
Coins: TypeAlias = npt.NDArray[np.bool_]
Floats: TypeAlias = npt.NDArray[np.float64]
Size: TypeAlias = int | tuple[int, ...]

LARGEST_SCALE: Final = 2.0**40
"""Grains; above about 2³⁰ draws become slow, since floating point decides ever fewer of them."""

_FIRST: Final = 63
"""Bits of V in a first word; the 64th is the sign."""
_SLOPPINESS: Final = 2.0**-46
"""Error allowed to a float quantile, of 1 + |z|. Its parts are below 2⁻⁵⁰ each: V as a float, `ndtri`, `log`, ×."""


@dataclass(frozen=True)
class _Law:
    """A symmetric, continuous law at scale 1, by the tail of its absolute value."""

    quantile: Callable[[Floats], Floats]
    """z ≥ 0 with P(|Z| > z) = V, for V in (0, 1]."""
    tail: Callable[[Any, Any], Any]
    """P(|Z| > z), in the digits of the given mpmath context."""


_GAUSSIAN: Final = _Law(
    quantile=lambda chance: -ndtri(chance / 2),
    tail=lambda context, z: context.erfc(z / context.sqrt(2)),
)
_LAPLACE: Final = _Law(
    quantile=lambda chance: -np.log(chance),
    tail=lambda context, z: context.exp(-z),
)


def gaussian(scale_in_grains: float, size: Size, bits: Bits) -> Integers:
    """round(Z) for Z ~ N(0, scale²), independently in each place."""
    return _rounded(_GAUSSIAN, scale_in_grains, size, bits)


def laplace(scale_in_grains: float, size: Size, bits: Bits) -> Integers:
    """round(Z) for Z of density exp(−|z|/scale)/(2 scale), independently in each place."""
    return _rounded(_LAPLACE, scale_in_grains, size, bits)


def bernoulli(probability: float, size: Size, bits: Bits) -> Coins:
    """True with exactly the probability that the float names, independently in each place."""
    if not 0 <= probability <= 1:
        raise ValueError(f"a probability lies between 0 and 1, not at {probability}")
    if probability == 1:
        return np.ones(size, dtype=np.bool_)
    # A uniform number is compared with p word by word; ldexp and the difference are exact.
    scaled = math.ldexp(probability, 64)
    threshold = math.floor(scaled)
    words = bits.words(_count(size))
    coins = words < np.uint64(threshold)
    equal = np.flatnonzero(words == np.uint64(threshold))
    if len(equal) and scaled > threshold:
        coins[equal] = bernoulli(scaled - threshold, len(equal), bits)
    return coins.reshape(size)


def uniform_below(n: int, size: Size, bits: Bits) -> Integers:
    """Uniform integers 0..n−1, for 1 ≤ n ≤ 2⁶³, independently in each place."""
    if not 1 <= n <= 2**63:
        raise ValueError(f"uniform integers below {n} cannot be drawn")
    last = np.uint64(2**64 // n * n - 1)
    count = _count(size)
    drawn = np.empty(count, dtype=np.int64)
    filled = 0
    while filled < count:
        words = bits.words(count - filled)
        kept = words[words <= last]
        drawn[filled : filled + len(kept)] = kept % np.uint64(n)
        filled += len(kept)
    return drawn.reshape(size)


def permutation(n: int, bits: Bits) -> Integers:
    """0..n−1 in an order of which every one is equally likely."""
    while True:
        keys = bits.words(n)
        order = np.argsort(keys)
        # Distinct keys have no preferred order; equal ones would be left in theirs, so all are drawn anew.
        if np.all(np.diff(keys[order]) > 0):
            return order.astype(np.int64)


def _count(size: Size) -> int:
    return size if isinstance(size, int) else math.prod(size)


def _rounded(law: _Law, scale: float, size: Size, bits: Bits) -> Integers:
    if not 0 < scale <= LARGEST_SCALE:
        raise ValueError(
            f"the scale of noise must be above 0 and at most 2**40 grains, not {scale}"
        )
    words = bits.words(_count(size))
    negative = (words >> np.uint64(_FIRST)).astype(np.bool_)
    first = words & np.uint64(2**_FIRST - 1)
    # The middle of the cell that the first bits leave to V; small V, the far tail, keeps its digits.
    z = law.quantile((first.astype(np.float64) + 0.5) * 2.0**-_FIRST)
    grains = scale * z
    whole = np.floor(grains)
    beyond_half = grains - whole - 0.5
    magnitude = (whole + (beyond_half > 0)).astype(np.int64)
    open_draws = np.flatnonzero(np.abs(beyond_half) <= scale * _margin(z, first))
    if len(open_draws):
        # A context of its own: mpmath's global one may be in use by another thread.
        context = mpmath.mp.clone()
        for place in open_draws:
            uniform = _Uniform(int(first[place]), bits, context)
            magnitude[place] = _decided(law, scale, int(magnitude[place]), uniform)
    return np.where(negative, -magnitude, magnitude).reshape(size)


def _margin(z: Floats, first: npt.NDArray[np.uint64]) -> Floats:
    """How far the true quantile may be from `z`: float error, and the bits of V that are not drawn yet.

    V lies within k..k+1 of 2⁻⁶³. The quantile's slope is 1/V for Laplace; for the Gaussian it is 1/(2φ(z)),
    at most 1/(zV) (Mills) where z ≥ 1 and below 2.1 elsewhere: 3/k covers all of them, and k = 0 leaves it open.
    """
    with np.errstate(divide="ignore"):
        return _SLOPPINESS * (1 + z) + 3 / first.astype(np.float64)


class _Uniform:
    """A uniform number in (0, 1) of which ever more bits can be had."""

    def __init__(self, first: int, bits: Bits, context: Any) -> None:
        self._value, self._length = first, _FIRST
        self._bits, self._context = bits, context

    def below(self, chance: Callable[[Any], Any]) -> bool:
        """Whether it is below a probability, which is computed in as many digits as it takes."""
        while True:
            # 64 digits behind the last of V, of which 16 are left to mpmath's own error.
            self._context.prec = self._length + 64
            boundary = self._context.ldexp(chance(self._context), self._length)
            error = self._context.ldexp(1, -48)
            if self._value + 1 <= boundary - error:
                return True
            if self._value >= boundary + error:
                return False
            self._value = self._value << 64 | int(self._bits.words(1)[0])
            self._length += 64


def _decided(law: _Law, scale: float, guess: int, uniform: _Uniform) -> int:
    """The least n ≥ 0 with |Z|·scale ≤ n + ½, searched for around a guess; each comparison is exact."""

    def above(n: int) -> bool:
        return uniform.below(lambda context: law.tail(context, (context.mpf(n) + 0.5) / scale))

    lowest, step = guess, 1
    while lowest > 0 and not above(lowest - 1):
        lowest, step = max(0, lowest - step), 2 * step
    highest, step = max(lowest, guess), 1
    while above(highest):
        highest, step = highest + step, 2 * step
    while lowest < highest:
        middle = (lowest + highest) // 2
        if above(middle):
            lowest = middle + 1
        else:
            highest = middle
    return lowest
