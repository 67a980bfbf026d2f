"""The accountant agrees with dp-accounting's own references and exact formulas, and never says less."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant, pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import optimize, special, stats

from wire.privacy import accounting
from wire.privacy.accounting import calibrate, epsilon, gaussian_epsilon
from wire.privacy.events import (
    EVENTS,
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

pytestmark = pytest.mark.slow

DELTA = 1e-5
SMALL_EVENTS = st.one_of(
    st.builds(Gaussian, sensitivity=st.just(1.0), scale=st.floats(2, 20)),
    st.builds(Laplace, sensitivity=st.just(1.0), scale=st.floats(2, 20), count=st.integers(1, 5)),
    st.builds(
        RandomizedResponse,
        buckets=st.integers(2, 6),
        epsilon=st.floats(0.05, 0.5),
        count=st.integers(1, 20),
    ),
    st.builds(Pure, epsilon=st.floats(0.05, 0.5), count=st.integers(1, 10)),
)


def _reference(event: dp_accounting.DpEvent, count: int = 1) -> float:
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    return float(accountant.compose(event, count).get_epsilon(DELTA))


def _responses_delta(each: float, buckets: int, count: int, at: float) -> float:
    """δ(ε) of k-ary randomised response by its multinomial, summed term by term."""
    gain = math.exp(each) / (math.exp(each) + buckets - 1)
    loss = 1 / (math.exp(each) + buckets - 1)
    nothing = max(0.0, 1 - gain - loss)
    terms = []
    for up in range(count + 1):
        for down in range(count + 1 - up):
            if (idle := count - up - down) and not nothing:
                continue
            ways = special.gammaln([count + 1, up + 1, down + 1, idle + 1]) @ [1, -1, -1, -1]
            log_chance = ways + up * math.log(gain) + down * math.log(loss)
            log_chance += idle * math.log(nothing) if idle else 0.0
            terms.append(math.exp(log_chance) * -math.expm1(min(0.0, at - (up - down) * each)))
    return math.fsum(terms)


def _binary_delta(each: float, count: int, at: float) -> float:
    """δ(ε) of binary response; what lies beyond 15 deviations is left out."""
    middle, deviation = count * special.expit(each), math.sqrt(count) / 2
    truths = np.arange(
        max(0, int(middle - 15 * deviation)), min(count, middle + 15 * deviation) + 1
    )
    chances = stats.binom.pmf(truths, count, special.expit(each))
    losses = (2 * truths - count) * each
    return float(np.sum(chances * -np.expm1(np.minimum(0.0, at - losses))))


Losses = dict[float, float]
"""Privacy losses of one answer, each with its chance."""


def _losses(event: Event) -> Losses:
    """From the probabilities of what one answer may be."""
    match event:
        case RandomizedResponse(buckets=buckets, epsilon=each):
            lie = 1 / (math.exp(each) + buckets - 1)
            return {each: math.exp(each) * lie, 0.0: (buckets - 2) * lie, -each: lie}
        case UnaryResponse(epsilon=each):
            one = 1 / (math.exp(each) + 1)
            bits = itertools.product((0, 1), repeat=2)
            chances: Losses = {each: 0.0, 0.0: 0.0, -each: 0.0}
            for mine, other in bits:
                chance = 0.5 * (one if other else 1 - one)
                chances[(mine - other) * each] += chance
            return chances
        case Pure(epsilon=each):
            return {each: 1 / (1 + math.exp(-each)), -each: 1 / (1 + math.exp(each))}
    raise AssertionError(event)


def _enumerated_delta(events: Sequence[Event], at: float) -> float:
    """δ(ε) of several answers by all the combinations of their losses."""
    answers = [_losses(event).items() for event in events for _ in range(event.count)]
    return math.fsum(
        math.prod(chance for _, chance in path)
        * -math.expm1(min(0.0, at - math.fsum(loss for loss, _ in path)))
        for path in itertools.product(*answers)
    )


@pytest.mark.parametrize("delta", [1e-3, 0.02, 0.1])
@pytest.mark.parametrize(
    "events",
    [
        [RandomizedResponse(buckets=2, epsilon=0.7), RandomizedResponse(buckets=3, epsilon=0.4)],
        [RandomizedResponse(buckets=2, epsilon=0.9, count=3), Pure(epsilon=1.1, count=2)],
        [UnaryResponse(epsilon=1.3, count=5)],
        [UnaryResponse(epsilon=0.8, count=2)] * 3,
        [UnaryResponse(epsilon=0.6, count=2), RandomizedResponse(buckets=2, epsilon=1.5)],
    ],
    ids=["two-three", "binary-pure", "unary", "unary-thrice", "unary-binary"],
)
def test_a_few_answers_cost_what_all_their_combinations_say(
    events: list[Event], delta: float
) -> None:
    ours = epsilon(events, delta)
    assert _enumerated_delta(events, ours) <= delta
    assert _enumerated_delta(events, 0.999 * ours - 1e-9) > delta


@pytest.mark.parametrize(("target", "mu"), [(1, 0.268), (4, 0.925), (8, 1.666)])
def test_gaussian_noise_costs_what_the_design_says(target: float, mu: float) -> None:
    assert epsilon([Gaussian(sensitivity=mu, scale=1.0)], DELTA) == pytest.approx(target, rel=2e-3)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 3.7, 40.0])
def test_gaussian_noise_agrees_with_its_closed_form(sigma: float) -> None:
    exact = dp_accounting.get_epsilon_gaussian(sigma, DELTA)
    ours = epsilon([Gaussian(sensitivity=2.0, scale=2.0 * sigma)], DELTA)
    assert exact <= ours <= exact * (1 + 1e-6) + 1e-6
    delta = stats.norm.cdf(0.5 / sigma - ours * sigma) - math.exp(ours) * stats.norm.cdf(
        -0.5 / sigma - ours * sigma
    )
    assert delta <= DELTA * (1 + 1e-6)


def test_gaussian_noise_composes_as_one() -> None:
    several = epsilon(
        [Gaussian(sensitivity=1.0, scale=10.0, count=5), Gaussian(sensitivity=2.0, scale=10.0)],
        DELTA,
    )
    assert several == pytest.approx(epsilon([Gaussian(sensitivity=3.0, scale=10.0)], DELTA))


def test_gaussian_noise_alone_is_judged_by_distance_over_scale_and_by_how_often() -> None:
    once = gaussian_epsilon(Gaussian(sensitivity=1.0, scale=1.0), DELTA)
    for event in (
        Gaussian(sensitivity=3.0, scale=3.0),
        Gaussian(sensitivity=1.0, scale=4.0, count=16),
        Gaussian(sensitivity=2.0, scale=6.0, count=9),
    ):
        assert gaussian_epsilon(event, DELTA) == pytest.approx(once)


def test_a_distribution_of_gaussian_noise_counts_how_often_it_happened() -> None:
    often = accounting._distribution(Gaussian(sensitivity=1.0, scale=10.0), 4, 1e-4)
    assert often.get_epsilon_for_delta(DELTA) == pytest.approx(
        gaussian_epsilon(Gaussian(sensitivity=1.0, scale=5.0), DELTA), rel=1e-3
    )


def test_gaussian_noise_among_others_agrees_with_dp_accounting() -> None:
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp_accounting.GaussianDpEvent(8.0), 3)
    accountant.compose(dp_accounting.LaplaceDpEvent(10.0), 4)
    ours = epsilon(
        [
            Gaussian(sensitivity=1.0, scale=8.0, count=3),
            Laplace(sensitivity=1.0, scale=10.0, count=4),
        ],
        DELTA,
    )
    assert ours == pytest.approx(accountant.get_epsilon(DELTA), rel=2e-3)


@pytest.mark.parametrize(("scale", "count"), [(1.0, 1), (1.0, 2), (5.0, 30), (50.0, 2000)])
def test_laplace_noise_agrees_with_dp_accounting(scale: float, count: int) -> None:
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    reference = accountant.compose(dp_accounting.LaplaceDpEvent(scale), count).get_epsilon(DELTA)
    ours = epsilon([Laplace(sensitivity=3.0, scale=3.0 * scale, count=count)], DELTA)
    assert ours == pytest.approx(reference, rel=2e-3)


def test_a_vector_of_laplace_noise_costs_no_more_than_one_number() -> None:
    # Moved by 1 in all: two coordinates by a half each lose less than one by the whole.
    whole = [Laplace(sensitivity=1.0, scale=0.7)]
    halves = [Laplace(sensitivity=0.5, scale=0.7, count=2)]
    for delta in (1e-3, 0.01, 0.1, 0.2):
        assert epsilon(halves, delta) <= epsilon(whole, delta) + 1e-4


@pytest.mark.parametrize(
    ("rate", "noise", "steps"), [(0.05, 1.2, 100), (0.3, 1.5, 2), (1.0, 20.0, 10)]
)
def test_sampled_gaussians_agree_with_dp_accounting(rate: float, noise: float, steps: int) -> None:
    reference = _reference(
        dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise)), steps
    )
    ours = epsilon([SampledGaussian(rate=rate, clip=2.0, scale=2.0 * noise, steps=steps)], DELTA)
    assert ours == pytest.approx(reference, rel=2e-3)


def test_a_sample_of_everybody_is_a_gaussian_moved_by_twice_the_clip() -> None:
    sampled = epsilon([SampledGaussian(rate=1.0, clip=1.0, scale=20.0, steps=10)], DELTA)
    plain = epsilon([Gaussian(sensitivity=2.0, scale=20.0, count=10)], DELTA)
    assert sampled == pytest.approx(plain, rel=1e-3)


@pytest.mark.parametrize(
    ("each", "count"), [(3.0, 1), (1.0, 7), (0.3, 40), (0.01, 3000), (1e-3, 10**6), (1e-5, 10**7)]
)
def test_binary_responses_agree_with_the_binomial(each: float, count: int) -> None:
    ours = epsilon([RandomizedResponse(buckets=2, epsilon=each, count=count)], DELTA)
    assert _binary_delta(each, count, ours) <= DELTA < _binary_delta(each, count, 0.998 * ours)


@pytest.mark.parametrize("buckets", [3, 4, 10, 1000])
@pytest.mark.parametrize(("each", "count"), [(2.0, 1), (1.0, 9), (0.2, 60)])
def test_responses_with_more_buckets_agree_with_the_multinomial(
    buckets: int, each: float, count: int
) -> None:
    ours = epsilon([RandomizedResponse(buckets=buckets, epsilon=each, count=count)], DELTA)
    assert _responses_delta(each, buckets, count, ours) <= DELTA
    assert _responses_delta(each, buckets, count, 0.998 * ours - 1e-9) > DELTA


def test_a_hundred_million_small_responses_are_a_gaussian() -> None:
    each, count = 1e-6, 2 * 10**8
    ours = epsilon([RandomizedResponse(buckets=10, epsilon=each, count=count)], DELTA)
    like = epsilon([Gaussian(sensitivity=math.sqrt(2 * each**2 / 10 * count), scale=1.0)], DELTA)
    assert ours == pytest.approx(like, rel=2e-3)


@pytest.mark.parametrize(
    ("at_once", "in_tenths"),
    [
        (
            RandomizedResponse(buckets=5, epsilon=0.05, count=600),
            RandomizedResponse(buckets=5, epsilon=0.05, count=60),
        ),
        (Pure(epsilon=0.05, count=300), Pure(epsilon=0.05, count=30)),
        (
            Laplace(sensitivity=1.0, scale=9.0, count=20),
            Laplace(sensitivity=1.0, scale=9.0, count=2),
        ),
        (
            Gaussian(sensitivity=1.0, scale=9.0, count=20),
            Gaussian(sensitivity=1.0, scale=9.0, count=2),
        ),
        (
            SampledGaussian(rate=0.1, clip=1.0, scale=2.0, steps=20),
            SampledGaussian(rate=0.1, clip=1.0, scale=2.0, steps=2),
        ),
    ],
    ids=lambda event: event.kind,
)
def test_what_is_split_over_rounds_costs_the_same(at_once: Event, in_tenths: Event) -> None:
    assert epsilon([in_tenths] * 10, DELTA) == pytest.approx(epsilon([at_once], DELTA), rel=1e-6)


def test_nothing_that_is_pure_costs_more_than_binary_response() -> None:
    pure = epsilon([Pure(epsilon=0.1, count=200)], DELTA)
    assert pure == epsilon([RandomizedResponse(buckets=2, epsilon=0.1, count=200)], DELTA)
    for other in (
        RandomizedResponse(buckets=3, epsilon=0.1, count=200),
        Laplace(sensitivity=0.1, scale=1.0, count=200),
    ):
        assert epsilon([other], DELTA) < pure


def test_upstream_still_counts_a_repeated_response_once() -> None:
    """If this fails, dp-accounting is mended: say so in `wire.privacy.accounting`."""
    event = dp_accounting.RandomizedResponseDpEvent(noise_parameter=0.5, num_buckets=2)
    assert _reference(event, 50) == _reference(event, 1)
    each = math.log(0.75 / 0.25)
    ours = [
        epsilon([RandomizedResponse(buckets=2, epsilon=each, count=count)], DELTA)
        for count in (1, 50)
    ]
    assert ours[0] == pytest.approx(_reference(event, 1), rel=1e-3)
    assert ours[1] > 30 * ours[0]


def test_without_delta_parts_add_up_and_gaussians_cost_everything() -> None:
    pure: list[Event] = [
        Laplace(sensitivity=1.0, scale=4.0, count=2),
        Pure(epsilon=0.3, count=3),
        RandomizedResponse(buckets=4, epsilon=0.2, count=5),
    ]
    assert epsilon(pure, 0.0) == pytest.approx(0.5 + 0.9 + 1.0)
    assert math.isinf(epsilon([*pure, Gaussian(sensitivity=1.0, scale=100.0)], 0.0))


def test_what_is_free_is_free_and_what_is_unprotected_is_lost() -> None:
    assert epsilon([], DELTA) == 0.0
    assert epsilon([Free(), Free()], DELTA) == 0.0
    assert math.isinf(epsilon([Free(), Unprotected(), Pure(epsilon=0.1)], DELTA))


@settings(max_examples=15, deadline=None)
@given(st.lists(SMALL_EVENTS, min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_the_order_does_not_matter_and_more_never_costs_less(
    events: list[Event], shuffler: st.DataObject
) -> None:
    whole = epsilon(events, DELTA)
    shuffled = list(events)
    shuffler.shuffle(shuffled)  # type: ignore[attr-defined]
    assert epsilon(shuffled, DELTA) == pytest.approx(whole, rel=1e-9)
    assert epsilon(events[:-1], DELTA) <= whole * (1 + 1e-3) + 1e-3
    assert epsilon(events, 10 * DELTA) <= whole
    assert whole <= math.fsum(epsilon([event], 0.0) for event in events)


def test_calibration_is_close_and_on_the_safe_side() -> None:
    noise = calibrate(lambda scale: [Gaussian(sensitivity=1.0, scale=scale)], 1.0, DELTA, 0.1, 100)
    assert noise is not None
    assert epsilon([Gaussian(sensitivity=1.0, scale=noise)], DELTA) <= 1.0
    assert epsilon([Gaussian(sensitivity=1.0, scale=noise / 1.002)], DELTA) > 1.0


def test_calibration_gives_up_where_no_noise_is_enough() -> None:
    events = [Gaussian(sensitivity=1.0, scale=1.0)]
    assert calibrate(lambda scale: events, 0.1, DELTA, 1.0, 10.0) is None
    assert calibrate(lambda scale: events, 100.0, DELTA, 1.0, 10.0) == 1.0


@pytest.mark.parametrize(("lowest", "highest"), [(1.0, 2.0), (2.0, 8.0), (1.0, 4.0)])
def test_calibration_takes_noise_that_costs_exactly_the_target(
    lowest: float, highest: float
) -> None:
    found = calibrate(lambda noise: [Pure(epsilon=1 / noise)], 0.5, 0.0, lowest, highest)
    assert found == 2.0


# -- losses on a grid ---------------------------------------------------------------------------------------


def _dense(
    grain: float, lowest: int, chances: Sequence[float], lost: float = 0.0
) -> pld_pmf.PLDPmf:
    return pld_pmf.DensePLDPmf(grain, lowest, np.array(chances), lost, True)


def _hockey_stick(grain: float, lowest: int, chances: Sequence[float], at: float) -> float:
    losses = (np.arange(len(chances)) + lowest) * grain
    return float(np.sum(np.array(chances) * -np.expm1(np.minimum(0.0, at - losses))))


@pytest.mark.parametrize(
    ("grain", "lowest", "chances"),
    [
        (0.5, -2, [0.1, 0.1, 0.2, 0.3, 0.2, 0.1]),
        (0.5, -1, [0.2, 0.3, 0.5]),
        (0.5, 0, [0.5, 0.3, 0.2]),
        (0.5, 1, [0.6, 0.2, 0.2]),
        (0.1, -3, [0.05] * 20),
        (3.0, -1, [0.25, 0.25, 0.25, 0.25]),
    ],
)
@pytest.mark.parametrize("lost", [0.0, 0.003])
def test_epsilon_between_two_losses_is_where_the_divergence_is_delta(
    grain: float, lowest: int, chances: list[float], lost: float
) -> None:
    shares = [(1 - lost) * chance for chance in chances]
    most = _hockey_stick(grain, lowest, shares, 0.0) + lost
    for delta in np.linspace(lost, most, 41)[1:-1]:
        exact = optimize.brentq(
            lambda at, delta=delta: _hockey_stick(grain, lowest, shares, at) + lost - delta,
            0.0,
            grain * (lowest + len(chances)),
            xtol=1e-14,
        )
        found = accounting._least_epsilon(_dense(grain, lowest, shares, lost), delta)
        assert found == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("lowest", [1, 2, 5])
def test_losses_that_are_all_positive_are_all_counted(lowest: int) -> None:
    chances = [0.5, 0.25, 0.125, 0.125]
    for delta in (0.01, 0.05, 0.1, 0.2):
        found = accounting._least_epsilon(_dense(0.5, lowest, chances), delta)
        assert _hockey_stick(0.5, lowest, chances, found) <= delta * (1 + 1e-9)
        assert _hockey_stick(0.5, lowest, chances, found - 1e-6) > delta


def test_losses_so_rare_that_delta_covers_them_cost_nothing() -> None:
    for delta in (0.25, 0.5):
        assert accounting._least_epsilon(_dense(0.5, -1, [0.5, 0.25, 0.125, 0.125]), delta) == 0.0


def test_losses_that_are_never_positive_cost_nothing() -> None:
    assert accounting._least_epsilon(_dense(0.5, -2, [0.5, 0.25, 0.25]), 1e-5) == 0.0


@pytest.mark.parametrize(("lost", "largest"), [(0.25, 0.5), (0.14, 0.41)])
def test_where_delta_is_just_what_is_lost_the_largest_loss_counts(
    lost: float, largest: float
) -> None:
    # In floating point 0.14 + 0.41 − 0.41 is above 0.14, so that no loss seems enough.
    chances = [1 - lost - largest, largest / 2, 0.0, largest]
    assert accounting._least_epsilon(_dense(1.0, 0, chances, lost), lost) == 3.0
    assert math.isinf(accounting._least_epsilon(_dense(1.0, 0, chances, lost), lost * 0.999))


def test_losses_are_moved_up_to_the_grid_unless_they_lie_on_it() -> None:
    losses, chances = np.array([-0.3, 0.1 + 0.2, 0.31, 0.4]), np.array([0.1, 0.2, 0.3, 0.4])
    moved = accounting._on_grid(losses, chances, 0.1, 0.0).to_dense_pmf()
    assert moved._lower_loss == -3
    assert moved._probs == pytest.approx([0.1, 0, 0, 0, 0, 0, 0.2, 0.7])


def test_both_directions_of_a_lopsided_distribution_are_looked_at() -> None:
    lopsided = pld.from_gaussian_mechanism(
        2.0, sampling_prob=0.1, value_discretization_interval=1e-3
    )
    ways = accounting._parts(lopsided)
    assert len(ways) == 2
    assert [way._lower_loss for way in ways] == [
        one.to_dense_pmf()._lower_loss for one in (lopsided._pmf_remove, lopsided._pmf_add)
    ]
    assert ways[0]._lower_loss != ways[1]._lower_loss


@pytest.mark.parametrize("variance", [0.0, 0.3, 40.0, 1e8])
def test_a_sum_is_cut_where_bernstein_leaves_just_the_tail(variance: float) -> None:
    reach = accounting._bernstein(variance)
    beyond = 2 * math.exp(-reach * reach / 2 / (variance + 2 * reach / 3))
    assert beyond / accounting._TAIL == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("count", [1, 7, 400])
def test_a_sum_of_zeros_ones_and_twos_is_their_convolution(count: int) -> None:
    expected = np.ones(1)
    for _ in range(count):
        expected = np.convolve(expected, [0.5, 0.3, 0.2])
    found = accounting._sum_of_few(0.3, 0.2, count, np.arange(2 * count + 1))
    assert found == pytest.approx(expected, abs=1e-14)
    assert found.min() >= 0


@pytest.mark.parametrize("count", [1, 2, 3, 20])
@pytest.mark.parametrize("chances", [(0.0, 0.4), (0.5, 0.2)])
def test_no_probability_of_responses_gets_lost(chances: tuple[float, float], count: int) -> None:
    (whole,) = accounting._parts(accounting._responses(0.3, chances, count, 1e-3))
    assert whole._probs.sum() == pytest.approx(1, abs=1e-12)
    assert whole._infinity_mass > 0


# -- events -------------------------------------------------------------------------------------------------

PLAIN: list[dict[str, object]] = [
    {"kind": "gaussian", "sensitivity": 1.0, "scale": 1.0},
    {"kind": "laplace", "sensitivity": 1.0, "scale": 1.0},
    {"kind": "randomized_response", "buckets": 3, "epsilon": 1.0},
    {"kind": "unary_response", "epsilon": 1.0},
    {"kind": "pure", "epsilon": 1.0},
    {"kind": "sampled_gaussian", "rate": 0.5, "clip": 1.0, "scale": 1.0, "steps": 1},
]
COUNTS = {"count", "steps"}


@pytest.mark.parametrize("plain", PLAIN, ids=lambda plain: plain["kind"])
def test_an_event_that_does_not_say_how_often_happened_once(plain: dict[str, object]) -> None:
    (event,) = EVENTS.validate_python([plain])
    counts = [value for name, value in event.model_dump().items() if name in COUNTS]
    assert counts == [1]


@pytest.mark.parametrize("plain", PLAIN, ids=lambda plain: plain["kind"])
def test_an_event_with_a_number_that_would_cost_nothing_is_not_read(
    plain: dict[str, object],
) -> None:
    whole = {"count": 1} | plain if "steps" not in plain else plain
    for name in set(whole) - {"kind"}:
        wrong = {0, -1} if name in COUNTS else {0.0, -0.5, -1.0, math.inf, -math.inf, math.nan}
        for value in wrong | ({1} if name == "buckets" else set()):
            with pytest.raises(ValidationError):
                EVENTS.validate_python([whole | {name: value}])


def test_a_unit_is_sampled_with_a_probability_of_at_most_one() -> None:
    EVENTS.validate_python([PLAIN[-1] | {"rate": 1.0}])
    with pytest.raises(ValidationError):
        EVENTS.validate_python([PLAIN[-1] | {"rate": 1.01}])


@pytest.mark.parametrize("plain", PLAIN, ids=lambda plain: plain["kind"])
def test_an_event_cannot_be_changed_and_has_nothing_unknown(plain: dict[str, object]) -> None:
    (event,) = EVENTS.validate_python([plain])
    with pytest.raises(ValidationError):
        event.kind = "free"  # type: ignore[assignment]
    with pytest.raises(ValidationError):
        EVENTS.validate_python([plain | {"discount": 2}])
    assert EVENTS.validate_json(EVENTS.dump_json((event,))) == (event,)
