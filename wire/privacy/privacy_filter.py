"""A privacy filter: what events cost together when each was chosen in sight of all answers before it.

Composed privacy loss distributions (`wire.privacy.accounting`) hold for events fixed in advance. A budget over tasks
that people think of one after the other needs a *filter*: a rule that looks at the events alone and under which
everything released until it says stop is (ε, δ)-private, however the events were chosen. Three rules are, each by a
proof of its own:

    basic   Σ ε of the pure events. The loss on every path is at most that. Uses no δ.
    GDP     Σ μ² of events that are μ-Gaussian-private: all of it together is √Σμ²-Gaussian-private (Smith and Thakurta
            2022; Koskela, Tobaben and Honkela 2022). A pure event has μ = 2Φ⁻¹(e^ε/(1+e^ε)), for its trade-off is two
            chords above the Gaussian's, which is convex and meets them where they meet.
    RDP     Σ ρ(α) at one order α fixed beforehand (Feldman and Zrnic 2021): given the past, an event multiplies
            E[(P/Q)^α] by at most e^((α−1)ρ(α)), so e^(−(α−1)Σρ)·∏(P/Q)^α stays at most 1 on average, also with ρ
            that depends on the past. (α, Σρ(α)) is turned into (ε, δ) as Canonne, Kamath and Steinke 2020 do.

Which of them is the best may depend on the answers, so none may be picked afterwards for nothing. Each gets a share
of δ, fixed here: half for GDP, half for all orders. On the paths where rule i still holds at the end, the release is
what it would be if rule i alone had decided, so P(S) ≤ e^ε Q(S) + δᵢ for every set S of them; summed over the rules
that is (ε, δ). `epsilon` is the least ε at which some rule still holds, and a release is admitted while that is
within the budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logsumexp, ndtri

from wire.privacy.accounting import (
    Noisy,
    gaussian_epsilon,
    pure_epsilon,
    response_chances,
    unary_chances,
)
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

ORDERS: Final = tuple(1.0 + 2.0**power for power in range(9))
"""2 … 257: the best order is about 1 + √(2 ln(1/δ))/μ, which these bracket for ε from 0.1 to 16."""
GDP_SHARE: Final = 0.5
"""Of δ. The orders share the rest equally."""
_UPWARDS: Final = 1 + 1e-9
"""Covers the float errors of logarithms and quantiles."""
_MOST_POINTS: Final = 1 << 20
_LAST_BITS: Final = 1e-15
"""Covers what the logarithm of a sum near 1 loses."""


def epsilon(events: Iterable[Event], delta: float) -> float:
    """The ε at which the filter stands after these events; ∞ if one of them has none.

    Never below what they cost if fixed in advance, and never less after more of them.
    """
    happened = tuple(events)
    if any(isinstance(event, Unprotected) for event in happened):
        return math.inf
    parts = sorted(_noisy(happened), key=repr)
    if not parts:
        return 0.0
    basic = math.fsum(pure_epsilon(event) for event in parts)
    if delta <= 0:
        return basic
    return min(basic, _by_gdp(parts, delta), *(_by_order(parts, order, delta) for order in ORDERS))


def renyi(event: Noisy, order: float) -> float:
    """ρ(order) of an event with all its answers: a bound on both Rényi divergences between neighbours."""
    match event:
        case SampledGaussian():
            return event.steps * _renyi_once(event.model_copy(update={"steps": 1}), order)
        case Gaussian() | Laplace() | RandomizedResponse() | UnaryResponse() | Pure():
            return event.count * _renyi_once(event.model_copy(update={"count": 1}), order)


def gaussian_parameter(event: Noisy) -> float:
    """μ of an event with all its answers: neighbours are no easier to tell apart than N(0, 1) and N(μ, 1)."""
    match event:
        case Gaussian():
            return math.sqrt(event.count) * event.sensitivity / event.scale
        case SampledGaussian():
            # At worst everybody is in every sample, and a replaced patient moves the sum by twice the clipped norm.
            return math.sqrt(event.steps) * 2 * event.clip / event.scale
        case Laplace() | RandomizedResponse() | UnaryResponse() | Pure():
            each = pure_epsilon(event) / event.count
            return math.sqrt(event.count) * (-2 * float(ndtri(expit(-each))) * _UPWARDS + 1e-15)


def _noisy(events: Iterable[Event]) -> Iterable[Noisy]:
    for event in events:
        if not isinstance(event, Free | Unprotected):
            yield event


def _by_gdp(parts: Sequence[Noisy], delta: float) -> float:
    square = math.fsum(gaussian_parameter(event) ** 2 for event in parts)
    if math.isinf(square):
        return math.inf
    whole = Gaussian(sensitivity=1.0, scale=1 / math.sqrt(square))
    return gaussian_epsilon(whole, delta * GDP_SHARE)


def _by_order(parts: Sequence[Noisy], order: float, delta: float) -> float:
    share = delta * (1 - GDP_SHARE) / len(ORDERS)
    spent = math.fsum(renyi(event, order) for event in parts)
    found = spent + math.log1p(-1 / order) - (math.log(share) + math.log(order)) / (order - 1)
    return max(0.0, found) * _UPWARDS


@lru_cache(maxsize=4096)
def _renyi_once(event: Noisy, order: float) -> float:
    match event:
        case Gaussian():
            return order / 2 * (event.sensitivity / event.scale) ** 2 * _UPWARDS
        case Laplace():
            return _laplace(event.sensitivity / event.scale, order)
        case RandomizedResponse():
            return _response(event.epsilon, response_chances(event.epsilon, event.buckets), order)
        case UnaryResponse():
            return _response(event.epsilon, unary_chances(event.epsilon), order)
        case Pure():
            # Binary randomised response is the worst of all ε-private mechanisms.
            return _response(event.epsilon, response_chances(event.epsilon, 2), order)
        case SampledGaussian():
            return _sampled_gaussian(event, order)


def _response(each: float, chances: tuple[float, float], order: float) -> float:
    """Of an answer whose loss is ±each or 0; `chances` are those of 0 and of −each."""
    nothing, less = chances
    steps = [(order - 1) * each, 0.0, -(order - 1) * each]
    moment = float(logsumexp(steps, b=[1 - nothing - less, nothing, less]))
    return min(each, (max(0.0, moment) * _UPWARDS + _LAST_BITS) / (order - 1))


def _laplace(ratio: float, order: float) -> float:
    """Mironov 2017, Proposition 6; `ratio` is sensitivity / scale."""
    weights = [order / (2 * order - 1), (order - 1) / (2 * order - 1)]
    moment = float(logsumexp([(order - 1) * ratio, -order * ratio], b=weights))
    return min(ratio, (max(0.0, moment) * _UPWARDS + _LAST_BITS) / (order - 1))


def _sampled_gaussian(event: SampledGaussian, order: float) -> float:
    """Of one step for a replaced unit, whose contribution turns around: no other pair is worse (`labellers/sgd.py`).

    The integral of an analytic function that falls off like a Gaussian, by the trapezoidal rule, whose error is then
    far below the rounding. Knowing who was sampled gives a bound in closed form, by convexity.
    """
    noise, rate = event.scale / event.clip, event.rate
    exponent = 2 * order * (order - 1) / noise**2
    known = float(logsumexp([0.0, exponent], b=[1 - rate, rate])) / (order - 1)
    step, reach = noise / 32, 2 * order - 1 + 40 * noise
    if rate == 1 or reach / step > _MOST_POINTS:
        return known * _UPWARDS
    points = np.arange(-reach, reach, step)

    def logarithm(centre: float) -> npt.NDArray[np.float64]:
        out, within = (points / noise) ** 2 / 2, ((points - centre) / noise) ** 2 / 2
        density = np.logaddexp(np.log1p(-rate) - out, np.log(rate) - within)
        return np.asarray(density, dtype=np.float64)

    height = step / (noise * math.sqrt(2 * math.pi))
    moment = float(logsumexp(order * logarithm(1.0) + (1 - order) * logarithm(-1.0), b=height))
    return min(known, (max(0.0, moment) + 1e-12) / (order - 1)) * _UPWARDS
