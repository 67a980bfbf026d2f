"""What events cost: the composed ε at a δ, by privacy loss distributions (dp-accounting's, and two of our own).

Randomised responses are written out here: dp-accounting 0.6.0's `PLDAccountant` counts one that is composed with
itself once, however often it is (tests/unit/test_accounting.py), and its Fourier transform of a single answer
raised to the power n loses n·10⁻¹⁶ of probability, which is felt at millions of answers.
Every rounding is upwards, and what floating point may lose is added to δ (`_ROUNDOFF`): the ε given here is not
below the true one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, reduce
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from dp_accounting import get_epsilon_gaussian
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.privacy_accountant import NeighboringRelation
from scipy import fft, signal, stats

from wire.privacy.events import (
    Event,
    Free,
    Gaussian,
    Laplace,
    Pure,
    RandomizedResponse,
    SampledGaussian,
    UnaryResponse,
    Unprotected,
)

Distribution: TypeAlias = pld.PrivacyLossDistribution
Noisy: TypeAlias = Gaussian | Laplace | RandomizedResponse | UnaryResponse | Pure | SampledGaussian
"""The events that have a cost, and a finite one at some δ."""
Numbers: TypeAlias = npt.NDArray[np.floating[Any]]

_FINEST: Final = 1e-4
"""Losses are kept to this; finer where all of them are small, coarser where their range is large."""
_CELLS: Final = 1 << 20
_FEWEST_CELLS: Final = 1 << 15
_TAIL: Final = 1e-15
"""Probability that may be cut off a distribution; it is added to δ."""
_ROUNDOFF: Final = 1e-12
"""Added to δ for the float error of the sums and transforms."""


def epsilon(events: Iterable[Event], delta: float) -> float:
    """The least ε we can show for all events together at `delta`; ∞ if one of them has none.

    At δ = 0 that is the sum of the parts, and ∞ as soon as there is Gaussian noise. What is asked, and in which order,
    may depend on earlier answers; which events there are and how much noise they have must not. (Each event is
    post-processing of one draw from its own pair of distributions; the draws can all be made in advance.) Where
    later events are chosen in sight of earlier answers, use `wire.privacy.privacy_filter`.
    """
    happened = tuple(events)
    if any(isinstance(event, Unprotected) for event in happened):
        return math.inf
    # The order must not matter, not even in the last digit.
    parts = sorted(Counter(_merged(happened)).items(), key=lambda part: repr(part[0]))
    if not parts:
        return 0.0
    basic = math.fsum(pure_epsilon(event) * times for event, times in parts)
    if delta <= 0:
        return basic
    first, _ = parts[0]
    if len(parts) == 1 and isinstance(first, Gaussian):
        return gaussian_epsilon(first, delta)
    return min(basic, _by_distribution(parts, delta))


def _by_distribution(parts: Sequence[tuple[Noisy, int]], delta: float) -> float:
    """The ε of the composed privacy loss distribution of events, each with how often it happened."""
    spread = math.fsum(_spread(event, times, delta) for event, times in parts)
    grain = max(spread / _CELLS, min(_FINEST, spread / _FEWEST_CELLS))
    whole = reduce(
        lambda so_far, part: so_far.compose(part, tail_mass_truncation=_TAIL),
        (_distribution(event, times, grain) for event, times in parts),
    )
    return max(_least_epsilon(pmf, delta - _ROUNDOFF) for pmf in _parts(whole))


def calibrate(
    events: Callable[[float], Sequence[Event]],
    target: float,
    delta: float,
    lowest: float,
    highest: float,
    *,
    precision: float = 1e-3,
) -> float | None:
    """The least noise in [lowest, highest] whose events cost at most `target`; None if none does.

    `events(noise)` must cost less the larger `noise` is. The answer is within `precision`, relatively, of
    the true one, and always on the safe side.
    """
    if epsilon(events(highest), delta) > target:
        return None
    if epsilon(events(lowest), delta) <= target:
        return lowest
    while highest / lowest > 1 + precision:
        middle = math.sqrt(lowest * highest)
        if epsilon(events(middle), delta) <= target:
            highest = middle
        else:
            lowest = middle
    return highest


def _merged(events: Iterable[Event]) -> Iterable[Noisy]:
    """The events that have a cost. Gaussian noise composes exactly: all of it together is one answer with less."""
    precision = 0.0
    for event in events:
        match event:
            case Gaussian():
                precision += event.count * (event.sensitivity / event.scale) ** 2
            case Laplace() | RandomizedResponse() | UnaryResponse() | Pure() | SampledGaussian():
                yield event
            case Free() | Unprotected():
                pass
    if precision:
        yield Gaussian(sensitivity=1.0, scale=1 / math.sqrt(precision))


def pure_epsilon(event: Noisy) -> float:
    """What an event costs at δ = 0."""
    match event:
        case Laplace():
            return event.count * event.sensitivity / event.scale
        case RandomizedResponse() | UnaryResponse() | Pure():
            return event.count * event.epsilon
        case Gaussian() | SampledGaussian():
            return math.inf


def _spread(event: Noisy, times: int, delta: float) -> float:
    """Roughly the range over which the loss of an event varies, to choose how finely it is kept."""
    reach = math.sqrt(2 * math.log(1 / delta)) + 10
    match event:
        case Gaussian():
            ratio = event.sensitivity / event.scale
            return ratio * ratio + 2 * reach * ratio
        case SampledGaussian():
            ratio = 2 * event.clip / event.scale * math.sqrt(event.steps * times)
            return event.rate * ratio * reach + ratio * ratio * event.rate
        case Laplace() | RandomizedResponse() | UnaryResponse() | Pure():
            each, count = pure_epsilon(event) / event.count, event.count * times
            return min(
                count * each, count * each * math.tanh(each / 2) + reach * each * math.sqrt(count)
            )


@lru_cache(maxsize=8)
def _distribution(event: Noisy, times: int, grain: float) -> Distribution:
    match event:
        case Gaussian():
            return pld.from_gaussian_mechanism(
                event.scale / math.sqrt(times),
                sensitivity=event.sensitivity,
                value_discretization_interval=grain,
            )
        case Laplace():
            # A vector costs no more than a number moved by the whole L1 distance: go there one coordinate at a
            # time; each way is a test of half-lines (Laplace is log-concave), and such trade-offs chain exactly.
            single = pld.from_laplace_mechanism(
                event.scale,
                sensitivity=event.sensitivity,
                value_discretization_interval=min(grain, event.sensitivity / event.scale / 25),
            )
            return _coarser(_composed(single, event.count * times), grain)
        case RandomizedResponse():
            chances = response_chances(event.epsilon, event.buckets)
            return _responses(event.epsilon, chances, event.count * times, grain)
        case UnaryResponse():
            chances = unary_chances(event.epsilon)
            return _responses(event.epsilon, chances, event.count * times, grain)
        case Pure():
            # Binary randomised response is the worst of all ε-private mechanisms under composition.
            chances = response_chances(event.epsilon, 2)
            return _responses(event.epsilon, chances, event.count * times, grain)
        case SampledGaussian():
            single = pld.from_gaussian_mechanism(
                event.scale,
                sensitivity=event.clip,
                sampling_prob=event.rate,
                value_discretization_interval=grain,
                neighboring_relation=NeighboringRelation.REPLACE_ONE,
            )
            return _composed(single, event.steps * times)


def gaussian_epsilon(event: Gaussian, delta: float) -> float:
    """Gaussian noise alone has a closed form; searched for to 10⁻¹², and rounded up."""
    sigma = event.scale / (event.sensitivity * math.sqrt(event.count))
    return float(get_epsilon_gaussian(sigma, delta, tol=1e-12)) * (1 + 1e-9) + 1e-9


def response_chances(each: float, buckets: int) -> tuple[float, float]:
    """(chance of losing nothing, chance of losing −each) of one randomised response."""
    loss = math.exp(-each) / (1 + (buckets - 1) * math.exp(-each))
    return (buckets - 2) * loss, loss


def unary_chances(each: float) -> tuple[float, float]:
    """(chance of losing nothing, chance of losing −each) of one unary response whose label changes."""
    return 0.5, 0.5 * math.exp(-each) / (1 + math.exp(-each))


def _responses(each: float, chances: tuple[float, float], count: int, grain: float) -> Distribution:
    """`count` answers whose loss is ±each or 0; `chances` are those of 0 and of −each.

    The number of answers that lost less than they could is exactly binomial (none loses 0), or a sum of
    independent 0, 1, 2, whose characteristic function is known in closed form.
    """
    nothing, loss = chances
    mean = nothing + 2 * loss
    reach = _bernstein(count * (nothing + 4 * loss - mean * mean))
    lowest = max(0, math.floor(count * mean - reach))
    highest = min(2 * count, math.ceil(count * mean + reach))
    if not nothing:
        missed = np.arange(lowest // 2, -(-highest // 2) + 1)
        weights = stats.binom.pmf(missed, count, loss)
        losses = (count - 2 * missed) * each
    else:
        missed = np.arange(lowest, highest + 1)
        weights = _sum_of_few(nothing, loss, count, missed)
        losses = (count - missed) * each
    return Distribution(_on_grid(losses, weights, grain, _TAIL))


def _bernstein(variance: float) -> float:
    """A sum of independent terms in [0, 2] is further than this from its mean with probability ≤ _TAIL."""
    surprise = math.log(2 / _TAIL)
    linear = 2 * surprise / 3
    return linear + math.sqrt(linear * linear + 2 * variance * surprise)


def _sum_of_few(one: float, two: float, count: int, wanted: npt.NDArray[np.int64]) -> Numbers:
    """P(sum = w) for `count` independent 0, 1 or 2; `wanted` must hold all but _TAIL of the sum's probability.

    log(1 + (φ−1)) keeps its digits where n·log φ matters, which φ to the power n does not.
    """
    size = fft.next_fast_len(len(wanted), real=True)
    angle = 2 * np.pi * np.arange(size // 2 + 1) / size
    once = -2 * np.sin(angle / 2) ** 2 - 1j * np.sin(angle)
    twice = -2 * np.sin(angle) ** 2 - 1j * np.sin(2 * angle)
    logarithm = count * np.log1p(one * once + two * twice)
    wrapped = fft.irfft(np.exp(logarithm), size)[wanted % size]
    return np.asarray(np.maximum(wrapped, 0.0), dtype=np.float64)


def _composed(single: Distribution, count: int) -> Distribution:
    return single.self_compose(count, tail_mass_truncation=_TAIL) if count > 1 else single


def _coarser(fine: Distribution, grain: float) -> Distribution:
    """The same distribution on multiples of `grain`, every loss rounded up."""
    parts = []
    for pmf in _parts(fine):
        losses: Numbers = (np.arange(pmf._probs.size) + pmf._lower_loss) * float(
            pmf._discretization
        )
        parts.append(_on_grid(losses, pmf._probs, grain, pmf._infinity_mass))
    return Distribution(*parts)


def _parts(distribution: Distribution) -> tuple[Any, ...]:
    first, second = distribution._pmf_remove, distribution._pmf_add
    both = (first,) if distribution._symmetric else (first, second)
    return tuple(pmf.to_dense_pmf() for pmf in both)


def _on_grid(losses: Numbers, chances: Numbers, grain: float, lost: float) -> pld_pmf.PLDPmf:
    # A loss that is a multiple but for its last bits is not moved to the next one.
    places = np.ceil(losses / grain - 1e-9).astype(np.int64)
    lowest = int(places.min())
    gathered = np.bincount(places - lowest, weights=chances)
    return pld_pmf.DensePLDPmf(grain, lowest, gathered, lost, True)


def _least_epsilon(pmf: Any, delta: float) -> float:
    """The ε ≥ 0 at which the hockey-stick divergence of a dense distribution of losses is `delta`."""
    if pmf._infinity_mass > delta:
        return math.inf
    grain = pmf._discretization
    first = max(0, 1 - pmf._lower_loss)
    chances = pmf._probs[first:]
    if not chances.size:
        return 0.0
    losses = (np.arange(first, pmf._probs.size) + pmf._lower_loss) * grain
    # above[j] = Σ p_i over i ≥ j, and weighted[j] = Σ p_i e^(l_j − l_i): δ(l_j) is their difference.
    above = pmf._infinity_mass + np.cumsum(chances[::-1])[::-1]
    weighted = signal.lfilter([1.0], [1.0, -math.exp(-grain)], chances[::-1])[::-1]
    enough = np.flatnonzero(above - weighted <= delta)
    if not enough.size:
        return float(losses[-1])
    place = enough[0]
    excess = above[place] - delta
    if excess <= 0 or weighted[place] <= 0:
        return float(max(0.0, losses[place] - grain))
    # Between two losses δ(ε) = above − e^(ε − l) · weighted.
    exact = losses[place] + math.log(excess / weighted[place])
    return float(min(max(exact, losses[place] - grain, 0.0), losses[place]))
