"""Our exact samplers against OpenDP's: the same distributions, and the same claims of privacy.

OpenDP draws from the operating system and cannot be seeded, so the tests here are random. Each of the twelve
comparisons that must agree does so up to a chance of `SURPRISE`: all together raise a false alarm in fewer than one
of a million runs. Bins are fixed beforehand by the law itself, and more than `FEWEST` of OpenDP's draws are expected
in each, so that the statistic follows its limit far out in its tail.

Ours is round(Z) for continuous Z. OpenDP's noise for floats is Z on a grid of 2⁻¹⁰⁷⁴, so its rounding has the same
law; its noise for integers is another one, P(n) ∝ exp(−|n|/scale), which the rounded Laplace follows but at 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import opendp.prelude as dp
import pytest
from numpy.typing import NDArray
from scipy import stats
from seeded_bits import SeededBits

from silo_agent.trainer.privacy.mechanisms.randomized_response import Answer, response
from silo_agent.trainer.privacy.mechanisms.xor import IndependentFlips, flip_at
from wire.privacy import noise
from wire.privacy.accounting import epsilon
from wire.privacy.events import Gaussian, Laplace

pytestmark = pytest.mark.slow

SURPRISE = 5e-8
FEWEST = 100
OURS, THEIRS = 200_000, 12_000
SCALES = [0.3, 3.0, 1234.5]
LAWS = {noise.gaussian: stats.norm, noise.laplace: stats.laplace}
DELTA = 1e-5

Integers = NDArray[np.int64]


@pytest.fixture(scope="module", autouse=True)
def _contributed() -> None:
    dp.enable_features("contrib")


def opendp_noise(law: Callable, scale: float) -> Any:
    """OpenDP's measurement that adds continuous noise of that law to a vector of floats."""
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False))
    if law is noise.laplace:
        return dp.m.make_laplace(domain, dp.l1_distance(T=float), scale=scale)
    return dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=scale)


def rounded_by_opendp(law: Callable, scale: float) -> Integers:
    return np.rint(opendp_noise(law, scale)([0.0] * THEIRS)).astype(np.int64)


def p_value(left: Integers, right: Integers, edges: NDArray[np.float64]) -> float:
    """Of the χ² test that two samples have one distribution, over the bins between `edges`."""
    counts = [
        np.bincount(np.searchsorted(edges, sample), minlength=len(edges) + 1)
        for sample in (left, right)
    ]
    table = np.array(counts)[:, np.sum(counts, axis=0) > 0]
    return float(stats.chi2_contingency(table, correction=False).pvalue)


def edges_of(law: Any) -> NDArray[np.float64]:
    """Halves of integers between which a law leaves a hundredth each; fewer where a bin would be nearly empty."""
    edges = np.unique(np.round(law.ppf(np.linspace(0, 1, 102)[1:-1]))) + 0.5
    edges = np.union1d(edges, [-0.5, 0.5])
    kept: list[float] = []
    for edge in edges:
        below = law.cdf(kept[-1]) if kept else 0.0
        above = law.sf(edge)
        if min(law.cdf(edge) - below, above) * THEIRS > FEWEST:
            kept.append(edge)
    return np.array(kept)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", SCALES)
def test_rounded_noise_is_distributed_as_opendps(law: Callable, scale: float) -> None:
    edges = edges_of(LAWS[law](scale=scale))
    assert len(edges) >= 2, "one cut would only compare signs"
    ours = law(scale, OURS, SeededBits(21))
    assert p_value(ours, rounded_by_opendp(law, scale), edges) > SURPRISE


@pytest.mark.parametrize("law", LAWS)
def test_the_comparison_would_notice_a_fifth_of_noise_too_little(law: Callable) -> None:
    # Missed with probability below 10⁻⁶: the statistic is then ten deviations above what is allowed.
    ours = law(0.8 * 3.0, OURS, SeededBits(22))
    theirs = rounded_by_opendp(law, 3.0)
    assert p_value(ours, theirs, edges_of(LAWS[law](scale=3.0))) < SURPRISE


def test_away_from_zero_rounded_laplace_noise_is_opendps_discrete_laplace() -> None:
    scale = 4.0
    domain = dp.vector_domain(dp.atom_domain(T=int))
    theirs = np.array(dp.m.make_laplace(domain, dp.l1_distance(T=int), scale=scale)([0] * THEIRS))
    ours = noise.laplace(scale, OURS, SeededBits(23))
    edges = np.arange(-9, 9) + 0.5
    assert p_value(ours[ours != 0], theirs[theirs != 0], edges) > SURPRISE


@pytest.mark.parametrize("flip", [0.02, 0.3, 0.49])
def test_bits_are_flipped_as_often_as_opendp_flips_them(flip: float) -> None:
    # OpenDP's f is the chance to draw a bit anew, which half the time leaves it as it is.
    theirs = dp.m.make_randomized_response_bitvec(
        dp.bitvector_domain(max_weight=1), dp.discrete_distance(), f=2 * flip
    )
    count = 160_000
    flipped = np.unpackbits(np.frombuffer(theirs(bytes(count // 8)), dtype=np.uint8))
    ours = IndependentFlips(classes=10, flip=flip).draw(count // 10, SeededBits(24))
    assert p_value(ours.ravel(), flipped, np.array([0.5])) > SURPRISE


@pytest.mark.parametrize(("classes", "row_epsilon"), [(4, 1.5), (10, 0.5)])
def test_labels_are_answered_as_opendp_answers_them(classes: int, row_epsilon: float) -> None:
    answers = response(Answer.K_ARY, classes, row_epsilon)
    theirs = dp.m.make_randomized_response(list(range(classes)), prob=answers.one_if_voted)
    label = 2
    drawn = np.array([theirs(label) for _ in range(3_000)])
    vote = answers.vote(np.full(OURS, label), SeededBits(25))
    assert vote.labels is not None
    assert p_value(vote.labels, drawn, np.arange(classes - 1) + 0.5) > SURPRISE


# -- what each of them claims --------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("sensitivity", [1.0, 2.5])
def test_laplace_noise_costs_what_opendp_says(scale: float, sensitivity: float) -> None:
    claimed = epsilon([Laplace(sensitivity=sensitivity, scale=scale)], delta=0.0)
    assert claimed == pytest.approx(opendp_noise(noise.laplace, scale).map(sensitivity), rel=1e-12)


@pytest.mark.parametrize("scale", [0.7, 3.0, 20.0])
@pytest.mark.parametrize("count", [1, 9])
def test_gaussian_noise_costs_no_more_than_opendp_bounds_it_by(scale: float, count: int) -> None:
    # OpenDP knows Gaussian noise by its zCDP, whose conversion to (ε, δ) is a bound, not exact: ours is closer.
    sensitivity = 1.5
    rho = count * opendp_noise(noise.gaussian, scale).map(sensitivity)
    assert rho == pytest.approx(count * (sensitivity / scale) ** 2 / 2, rel=1e-12)
    composed = opendp_noise(noise.gaussian, scale / math.sqrt(count))
    bound = dp.c.make_zCDP_to_approxDP(composed).map(sensitivity).epsilon(DELTA)
    claimed = epsilon([Gaussian(sensitivity=sensitivity, scale=scale, count=count)], DELTA)
    assert 0.8 * bound < claimed <= bound


@pytest.mark.parametrize("bit_epsilon", [0.05, 0.8, 3.0])
@pytest.mark.parametrize("rows", [1, 40])
def test_flipped_ballots_cost_what_opendp_says(bit_epsilon: float, rows: int) -> None:
    flip = flip_at(bit_epsilon)
    ballot = dp.bitvector_domain(max_weight=rows)
    theirs = dp.m.make_randomized_response_bitvec(ballot, dp.discrete_distance(), f=2 * flip)
    ours = epsilon([IndependentFlips(classes=10, flip=flip).event(rows)], delta=0.0)
    assert ours == pytest.approx(theirs.map(1), rel=1e-9)
    single = dp.m.make_randomized_response_bool(prob=1 - flip).map(1)
    assert ours == pytest.approx(2 * rows * single, rel=1e-9)


@pytest.mark.parametrize("classes", [2, 4, 10])
@pytest.mark.parametrize("row_epsilon", [0.05, 1.5, 4.0])
def test_an_answered_label_costs_what_opendp_says(classes: int, row_epsilon: float) -> None:
    answers = response(Answer.K_ARY, classes, row_epsilon)
    categories = list(range(classes))
    theirs = dp.m.make_randomized_response(categories, prob=answers.one_if_voted).map(1)
    assert answers.row_epsilon == pytest.approx(theirs, rel=1e-9)
    assert epsilon([answers.event(rows=7)], delta=0.0) == pytest.approx(7 * theirs, rel=1e-9)
