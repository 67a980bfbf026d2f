"""A budget over events chosen in sight of earlier answers is kept by the filter, and is not by composed distributions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import mpmath
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from wire.privacy import accounting, privacy_filter
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

EVENTS: tuple[Event, ...] = (
    Gaussian(sensitivity=0.3, scale=1.0, count=2),
    Laplace(sensitivity=1.0, scale=8.0, count=5),
    RandomizedResponse(buckets=2, epsilon=0.2, count=30),
    RandomizedResponse(buckets=7, epsilon=0.4, count=9),
    UnaryResponse(epsilon=0.3, count=20),
    Pure(epsilon=0.5),
    SampledGaussian(rate=0.1, clip=1.0, scale=3.0, steps=40),
)

Cost = Callable[[tuple[Event, ...]], float]


def _worst_delta(menu: Sequence[float], limit: float, cost: Cost) -> float:
    """δ that the most cunning analyst reaches who buys binary responses, each time in sight of all answers so far.

    By dynamic programming over what was bought and what was lost: exact, whatever rule `cost` stops by.
    """

    @cache
    def allowed(bought: tuple[int, ...]) -> bool:
        events = tuple(
            RandomizedResponse(buckets=2, epsilon=each, count=times)
            for each, times in zip(menu, bought, strict=True)
            if times
        )
        return cost(events) <= limit

    @cache
    def best(bought: tuple[int, ...], net: tuple[int, ...]) -> float:
        loss = math.fsum(each * answers for each, answers in zip(menu, net, strict=True))
        most = max(0.0, 1 - math.exp(limit - loss))
        for place, each in enumerate(menu):
            more = _changed(bought, place, 1)
            if allowed(more):
                truth = 1 / (1 + math.exp(-each))
                up, down = _changed(net, place, 1), _changed(net, place, -1)
                most = max(most, truth * best(more, up) + (1 - truth) * best(more, down))
        return most

    nothing = (0,) * len(menu)
    return best(nothing, nothing)


def _changed(counts: tuple[int, ...], place: int, by: int) -> tuple[int, ...]:
    return (*counts[:place], counts[place] + by, *counts[place + 1 :])


MENU = (0.1, 1.0)
LIMIT, DELTA = 1.5, 0.05


def test_composed_distributions_do_not_stop_an_analyst_who_looks_at_the_answers() -> None:
    reached = _worst_delta(MENU, LIMIT, lambda events: accounting.epsilon(events, DELTA))
    assert reached > 1.3 * DELTA


@pytest.mark.parametrize(
    ("menu", "limit", "delta"),
    [
        (MENU, LIMIT, DELTA),
        ((0.2, 0.5), 1.0, 0.05),
        ((0.3, 0.7, 1.1), 2.0, 0.02),
        ((0.4,), 2.0, 0.1),
    ],
)
def test_the_filter_stops_every_analyst_in_time(
    menu: tuple[float, ...], limit: float, delta: float
) -> None:
    reached = _worst_delta(menu, limit, lambda events: privacy_filter.epsilon(events, delta))
    assert reached <= delta


@given(
    st.lists(st.sampled_from(EVENTS), min_size=1, max_size=5), st.sampled_from([1e-9, 1e-5, 1e-2])
)
@settings(max_examples=25, deadline=None)
def test_it_is_never_below_what_events_fixed_in_advance_cost(
    events: list[Event], delta: float
) -> None:
    assert privacy_filter.epsilon(events, delta) >= accounting.epsilon(events, delta) - 1e-9


@given(st.lists(st.sampled_from(EVENTS), min_size=2, max_size=8))
@settings(max_examples=50, deadline=None)
def test_more_events_never_cost_less_and_their_order_does_not_matter(events: list[Event]) -> None:
    whole = privacy_filter.epsilon(events, 1e-5)
    assert privacy_filter.epsilon(events[:-1], 1e-5) <= whole
    assert privacy_filter.epsilon(events[::-1], 1e-5) == whole


@pytest.mark.parametrize("answers", [1, 3, 12, 100])
def test_gaussian_noise_costs_hardly_more_when_chosen_adaptively(answers: int) -> None:
    events = [Gaussian(sensitivity=0.268, scale=1.0)] * answers
    in_advance = accounting.epsilon(events, 1e-5)
    assert in_advance <= privacy_filter.epsilon(events, 1e-5) <= 1.05 * in_advance


def test_pure_events_add_up_where_that_is_less() -> None:
    assert privacy_filter.epsilon([Pure(epsilon=0.4), Pure(epsilon=0.1)], 1e-9) == pytest.approx(
        0.5
    )
    assert privacy_filter.epsilon([Pure(epsilon=0.4)], 0.0) == pytest.approx(0.4)
    assert math.isinf(privacy_filter.epsilon([Gaussian(sensitivity=1.0, scale=5.0)], 0.0))


def test_nothing_costs_nothing_and_no_noise_everything() -> None:
    assert privacy_filter.epsilon([], 1e-5) == privacy_filter.epsilon([Free()], 1e-5) == 0
    assert math.isinf(privacy_filter.epsilon([Unprotected(), Pure(epsilon=0.1)], 1e-5))


def test_the_shares_of_delta_are_not_more_than_all_of_it() -> None:
    each = (1 - privacy_filter.GDP_SHARE) / len(privacy_filter.ORDERS)
    assert privacy_filter.GDP_SHARE + each * len(privacy_filter.ORDERS) <= 1
    assert all(order > 1 for order in privacy_filter.ORDERS)


def _density_divergence(
    first: Callable[[float], float], second: Callable[[float], float], order: float
) -> float:
    """Rényi divergence of two log densities on the line, by quadrature."""
    value, _ = integrate.quad(
        lambda x: math.exp(order * first(x) + (1 - order) * second(x)), -60, 60, limit=500
    )
    return math.log(value) / (order - 1)


@pytest.mark.parametrize("order", [2.0, 3.0, 9.0])
def test_renyi_bounds_of_noise_are_those_of_its_densities(order: float) -> None:
    gaussian = _density_divergence(stats.norm.logpdf, lambda x: stats.norm.logpdf(x, 0.7), order)
    claimed = privacy_filter.renyi(Gaussian(sensitivity=0.7, scale=1.0), order)
    assert claimed == pytest.approx(gaussian, rel=1e-6)
    laplace = _density_divergence(
        stats.laplace.logpdf, lambda x: stats.laplace.logpdf(x, 0.7), order
    )
    claimed = privacy_filter.renyi(Laplace(sensitivity=0.7, scale=1.0), order)
    assert claimed == pytest.approx(laplace, rel=1e-6)


@pytest.mark.parametrize("order", [2.0, 5.0, 65.0])
@pytest.mark.parametrize("each", [0.01, 0.8, 3.0])
def test_renyi_bounds_of_responses_are_those_of_their_probabilities(
    order: float, each: float
) -> None:
    def exact(first: Sequence[float], second: Sequence[float]) -> float:
        total = math.fsum(a**order * b ** (1 - order) for a, b in zip(first, second, strict=True))
        return math.log(total) / (order - 1)

    lie = 1 / (math.exp(each) + 2)
    truth = math.exp(each) * lie
    claimed = privacy_filter.renyi(RandomizedResponse(buckets=3, epsilon=each), order)
    assert claimed == pytest.approx(
        exact((truth, lie, lie), (lie, truth, lie)), rel=1e-6, abs=1e-13
    )
    one = 1 / (math.exp(each) + 1)
    bits = [(p, 1 - p) for p in (0.5, one)]
    here = [a * b for a in bits[0] for b in bits[1]]
    there = [a * b for a in bits[1] for b in bits[0]]
    claimed = privacy_filter.renyi(UnaryResponse(epsilon=each), order)
    assert claimed == pytest.approx(exact(here, there), rel=1e-6, abs=1e-13)


@pytest.mark.parametrize("order", [2.0, 5.0, 17.0])
@pytest.mark.parametrize(("rate", "noise"), [(0.05, 1.5), (0.2, 4.0), (0.9, 3.0)])
def test_the_bound_of_a_sampled_sum_covers_a_patient_who_turns_around(
    order: float, rate: float, noise: float
) -> None:
    def law(mean: float) -> Callable[[float], float]:
        return lambda x: float(
            np.logaddexp(
                math.log(1 - rate) + stats.norm.logpdf(x, 0, noise),
                math.log(rate) + stats.norm.logpdf(x, mean, noise),
            )
        )

    exact = _density_divergence(law(1.0), law(-1.0), order)
    claimed = privacy_filter.renyi(
        SampledGaussian(rate=rate, clip=1.0, scale=noise, steps=3), order
    )
    assert 3 * exact <= claimed * (1 + 1e-9)
    assert claimed == pytest.approx(3 * exact, rel=1e-6)
    # Removed first, then another added: what dp-accounting has for each, by the triangle inequality.
    accountant = RdpAccountant([2 * order, 2 * order - 1])
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), 3)
    removed, added = accountant._rdp
    assert claimed <= (order - 0.5) / (order - 1) * removed + added


@pytest.mark.parametrize("each", [0.05, 0.5, 2.0])
def test_a_pure_event_is_no_easier_to_tell_apart_than_its_gaussians(each: float) -> None:
    mu = privacy_filter.gaussian_parameter(Pure(epsilon=each))
    for alpha in np.linspace(1e-6, 1 - 1e-6, 401):
        response = max(0.0, 1 - math.exp(each) * alpha, math.exp(-each) * (1 - alpha))
        assert stats.norm.cdf(stats.norm.ppf(1 - alpha) - mu) <= response + 1e-12


# -- closed forms, not one part in a million too small --------------------------------------------------------


def _hardly_above(claimed: float, exact: float) -> bool:
    return exact <= claimed <= exact * (1 + 1e-8) + 1e-14


@pytest.mark.parametrize(
    ("event", "mu"),
    [
        (Gaussian(sensitivity=3.0, scale=2.0, count=4), 3.0),
        (SampledGaussian(rate=0.1, clip=3.0, scale=2.0, steps=4), 6.0),
        (Pure(epsilon=1.0, count=9), 6 * stats.norm.ppf(1 / (1 + math.exp(-1)))),
        (
            Laplace(sensitivity=3.0, scale=2.0, count=4),
            4 * stats.norm.ppf(1 / (1 + math.exp(-1.5))),
        ),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_the_gaussian_that_stands_for_an_event_grows_with_its_answers(
    event: Event, mu: float
) -> None:
    claimed = privacy_filter.gaussian_parameter(event)
    assert claimed == pytest.approx(mu, rel=1e-8)
    assert claimed >= mu * (1 - 1e-15)


@pytest.mark.parametrize("order", [2.0, 9.0, 257.0])
def test_renyi_bounds_of_gaussians_depend_on_distance_over_scale(order: float) -> None:
    plain = Gaussian(sensitivity=3.0, scale=2.0, count=4)
    assert _hardly_above(privacy_filter.renyi(plain, order), 4 * order / 2 * 2.25)
    everybody = SampledGaussian(rate=1.0, clip=3.0, scale=2.0, steps=4)
    assert _hardly_above(privacy_filter.renyi(everybody, order), 4 * order / 2 * 9.0)


@pytest.mark.parametrize("order", [2.0, 9.0])
def test_renyi_bounds_of_pure_noise_are_rounded_up(order: float) -> None:
    each = 0.75
    with mpmath.workdps(40):
        up, down = mpmath.exp((order - 1) * each), mpmath.exp(-order * each)
        laplace = (order * up + (order - 1) * down) / (2 * order - 1)
        truth = 1 / (1 + mpmath.exp(-each))
        response = truth**order * (1 - truth) ** (1 - order)
        response += (1 - truth) ** order * truth ** (1 - order)
        exact = [5 * float(mpmath.log(moment) / (order - 1)) for moment in (laplace, response)]
    claimed = privacy_filter.renyi(Laplace(sensitivity=3.0, scale=4.0, count=5), order)
    assert _hardly_above(claimed, exact[0])
    claimed = privacy_filter.renyi(Pure(epsilon=each, count=5), order)
    assert _hardly_above(claimed, exact[1])


@pytest.mark.parametrize("order", [2.0, 17.0])
def test_a_pure_event_is_taken_for_a_binary_response(order: float) -> None:
    response = RandomizedResponse(buckets=2, epsilon=0.6, count=3)
    pure = privacy_filter.renyi(Pure(epsilon=0.6, count=3), order)
    assert pure == privacy_filter.renyi(response, order)
    assert pure > privacy_filter.renyi(RandomizedResponse(buckets=3, epsilon=0.6, count=3), order)


def test_a_sampled_sum_with_hardly_any_noise_is_as_bad_as_knowing_the_sample() -> None:
    rate, noise, order = 0.2, 0.01, 257.0
    with mpmath.workprec(200):
        moment = mpmath.exp(2 * order * (order - 1) / mpmath.mpf(noise) ** 2)
        exact = float(mpmath.log(1 - rate + rate * moment) / (order - 1))
    event = SampledGaussian(rate=rate, clip=3.0, scale=3.0 * noise, steps=1)
    assert _hardly_above(privacy_filter.renyi(event, order), exact)


@pytest.mark.parametrize(("noise", "order"), [(0.02, 257.0), (0.3, 17.0), (0.4, 2.0)])
def test_a_sampled_sum_with_little_noise_costs_what_its_highest_peak_says(
    noise: float, order: float
) -> None:
    # Where the unit is in the sample here, and the other one is not there.
    rate = 0.2
    peak = order * math.log(rate) + (1 - order) * math.log(1 - rate)
    peak += order * (order - 1) / (2 * noise**2)
    event = SampledGaussian(rate=rate, clip=1.0, scale=noise, steps=1)
    assert privacy_filter.renyi(event, order) >= (peak - 1e-6) / (order - 1)


def test_a_sampled_sum_that_costs_next_to_nothing_is_not_rounded_down() -> None:
    rate, noise = 0.01, 20.0
    with mpmath.workdps(30):

        def density(x: mpmath.mpf, mean: int) -> mpmath.mpf:
            return (1 - rate) * mpmath.npdf(x, 0, noise) + rate * mpmath.npdf(x, mean, noise)

        moment = mpmath.quad(
            lambda x: density(x, 1) ** 2 / density(x, -1), np.linspace(-400, 400, 9).tolist()
        )
        exact = float(mpmath.log(moment))
    event = SampledGaussian(rate=rate, clip=1.0, scale=noise, steps=1)
    assert exact <= privacy_filter.renyi(event, 2.0) <= exact + 3e-12


@pytest.mark.parametrize("scale", [3.0, 1.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-3])
def test_each_rule_uses_its_share_of_delta_and_no_more(scale: float, delta: float) -> None:
    events = [Gaussian(sensitivity=1.0, scale=scale)] * 2
    used = []
    mu = math.sqrt(2) / scale
    at = privacy_filter._by_gdp(events, delta)
    used.append(stats.norm.cdf(mu / 2 - at / mu) - math.exp(at) * stats.norm.cdf(-mu / 2 - at / mu))
    assert used[0] == pytest.approx(delta / 2, rel=1e-4)
    for order in privacy_filter.ORDERS:
        at = privacy_filter._by_order(events, order, delta)
        # Canonne, Kamath and Steinke 2020, Proposition 12.
        spent = order * mu**2 / 2
        used.append(math.exp((order - 1) * (spent - at)) / (order - 1) * (1 - 1 / order) ** order)
        share = delta / 2 / len(privacy_filter.ORDERS)
        assert 0.999 * share < used[-1] <= share * (1 + 1e-10)
    assert math.fsum(used) <= delta


def test_no_rule_stands_below_zero() -> None:
    next_to_nothing = [Gaussian(sensitivity=1e-6, scale=1.0)]
    assert privacy_filter._by_order(next_to_nothing, 257.0, 0.9) == 0
    assert privacy_filter.epsilon(next_to_nothing, 0.9) >= 0
