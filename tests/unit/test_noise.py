"""Noise is distributed as rounded Gaussians and Laplaces are, to the last bit that decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import comb

import mpmath
import numpy as np
import pytest
from scipy import stats
from seeded_bits import SeededBits

from wire.privacy import noise
from wire.privacy.randomness import SecureBits, Words

pytestmark = pytest.mark.slow

SURPRISE = 1e-6
SIGN = 1 << 63
TAILS = {
    noise.gaussian: lambda z: mpmath.erfc(z / mpmath.sqrt(2)),
    noise.laplace: lambda z: mpmath.exp(-z),
}
LAWS = {noise.gaussian: stats.norm, noise.laplace: stats.laplace}


class ListedBits:
    """Gives the listed words, and counts them."""

    def __init__(self, *words: int) -> None:
        self._words, self.given = list(words), 0

    def words(self, count: int) -> Words:
        assert self.given + count <= len(self._words), "more bits were drawn than the case has"
        given = self._words[self.given : self.given + count]
        self.given += count
        return np.array(given, dtype=np.uint64)


class CountedBits(SeededBits):
    given = 0

    def words(self, count: int) -> Words:
        self.given += count
        return super().words(count)


@pytest.mark.parametrize("sampler", LAWS)
@pytest.mark.parametrize("scale", [0.3, 1.0, 7.7, 1234.5, 1e6, 2.0**31])
def test_frequencies_are_those_of_rounded_noise(sampler: Callable, scale: float) -> None:
    law = LAWS[sampler](scale=scale)
    drawn = sampler(scale, 200_000, SeededBits(4))
    edges = np.unique(np.round(law.ppf(np.linspace(0, 1, 202)[1:-1]))) + 0.5
    if scale < 1:
        edges = np.array([-1.5, -0.5, 0.5, 1.5])
    expected = np.diff(law.cdf(edges), prepend=0, append=1) * drawn.size
    observed = np.bincount(np.searchsorted(edges, drawn), minlength=len(edges) + 1)
    assert stats.chisquare(observed, expected).pvalue > SURPRISE


@pytest.mark.parametrize("sampler", LAWS)
def test_neighbouring_integers_are_as_likely_as_they_should_be(sampler: Callable) -> None:
    drawn = sampler(3.0, 400_000, SeededBits(5))
    law = LAWS[sampler](scale=3.0)
    inner = np.arange(-9, 10)
    chances = law.cdf(inner + 0.5) - law.cdf(inner - 0.5)
    observed = [np.count_nonzero(drawn == n) for n in inner]
    rest = drawn.size - sum(observed)
    expected = np.append(chances, 1 - chances.sum()) * drawn.size
    assert stats.chisquare([*observed, rest], expected).pvalue > SURPRISE


@pytest.mark.parametrize("sampler", LAWS)
def test_signs_are_fair_and_zero_has_none(sampler: Callable) -> None:
    word = 123456789 << 30
    up = sampler(5.0, 1, ListedBits(word))
    down = sampler(5.0, 1, ListedBits(word | SIGN))
    assert up[0] == -down[0] > 0


@pytest.mark.parametrize("sampler", TAILS)
@pytest.mark.parametrize(("scale", "boundary"), [(1.0, 0.5), (1.0, 3.5), (2e5, 12345.5)])
def test_a_draw_on_a_boundary_is_decided_by_later_bits(
    sampler: Callable, scale: float, boundary: float
) -> None:
    with mpmath.workprec(400):
        digits = int(mpmath.ldexp(TAILS[sampler](mpmath.mpf(boundary) / scale), 63 + 64 + 64))
    first, second, third = digits >> 128, digits >> 64 & 2**64 - 1, digits & 2**64 - 1
    # V below the boundary's tail probability is |Z| above the boundary.
    above, below = int(boundary + 0.5), int(boundary - 0.5)
    cases = [
        ((first, second - 1), above),
        ((first, second + 1), below),
        ((first, second, third - 1), above),
        ((first, second, third + 1), below),
        ((first | SIGN, second, third - 1), -above),
    ]
    for words, expected in cases:
        bits = ListedBits(*words)
        assert sampler(scale, 1, bits)[0] == expected
        assert bits.given == len(words)


@pytest.mark.parametrize("sampler", TAILS)
def test_words_around_a_boundary_fall_on_their_side_of_it(sampler: Callable) -> None:
    scale, boundary = 1e6, 700_000.5
    with mpmath.workprec(300):
        first = int(mpmath.ldexp(TAILS[sampler](mpmath.mpf(boundary) / scale), 63))
    for shift in [s * 4**power for power in range(1, 20) for s in (-1, 1)]:
        drawn = sampler(scale, 1, ListedBits(first + shift, 0, 0))[0]
        near = abs(shift) < 2**62 * 1e-6
        assert (drawn > boundary) == (shift < 0)
        assert not near or abs(drawn - boundary) == 0.5


@pytest.mark.parametrize("sampler", TAILS)
@pytest.mark.parametrize("words", [(0, 5 << 40), (1, 1 << 63), (0, 0, 77 << 50), (3, 0)])
def test_the_far_tail_is_exact_too(sampler: Callable, words: tuple[int, ...]) -> None:
    scale = 1000.0
    drawn = int(sampler(scale, 1, ListedBits(*words, *([1 << 62] * 8)))[0])
    with mpmath.workprec(900):
        value = mpmath.mpf(0)
        for place, word in enumerate((*words, *([1 << 62] * 8))):
            value += mpmath.ldexp(word, -63 - 64 * place)
        tail = TAILS[sampler]
        assert tail((drawn + 0.5) / mpmath.mpf(scale)) <= value
        assert value < tail((drawn - 0.5) / mpmath.mpf(scale))
    assert drawn > 8 * scale


def test_more_bits_are_needed_less_than_once_in_a_million() -> None:
    bits = CountedBits(6)
    noise.gaussian(1000.0, 2_000_000, bits)
    assert bits.given <= 2_000_000 + 4


def test_shapes_are_kept() -> None:
    bits = SeededBits(1)
    assert noise.gaussian(2.0, (3, 4), bits).shape == (3, 4)
    assert noise.laplace(2.0, (2, 1, 5), bits).shape == (2, 1, 5)
    assert noise.bernoulli(0.5, (3, 2), bits).shape == (3, 2)
    assert noise.uniform_below(7, (4, 2), bits).shape == (4, 2)
    assert noise.gaussian(2.0, 0, bits).dtype == np.int64


@pytest.mark.parametrize(
    "scale", [0.0, -1.0, float("nan"), float("inf"), np.nextafter(2.0**40, np.inf), 2.0**41]
)
def test_a_scale_that_cannot_be_drawn_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="scale of noise"):
        noise.gaussian(scale, 1, SeededBits(1))


@pytest.mark.parametrize("sampler", TAILS)
def test_the_largest_scale_can_be_drawn(sampler: Callable) -> None:
    assert 0 < abs(sampler(2.0**40, 1, SeededBits(1))[0]) < 2.0**44


@pytest.mark.parametrize(("sloppy", "true"), [(0.75, -0.75), (-0.75, 0.75)])
def test_a_boundary_is_trusted_no_further_than_its_digits(sloppy: float, true: float) -> None:
    """A probability computed to 64 digits behind the bits of V may be wrong in the last 16 of them."""
    first = 123456789 << 30

    def chance(context: mpmath.ctx_mp.MPContext) -> mpmath.mpf:
        error = sloppy if context.prec == 63 + 64 else true
        end = first + 1 if sloppy > 0 else first
        return context.ldexp(end + context.ldexp(error, -48), -63)

    # The last and the first of the next 2⁶⁴ cells: V lies above the true probability, or below it.
    bits = ListedBits(2**64 - 1 if sloppy > 0 else 0)
    uniform = noise._Uniform(first, bits, mpmath.mp.clone())
    assert uniform.below(chance) == (sloppy < 0)
    assert bits.given == 1


def test_noise_comes_out_of_the_secure_generator() -> None:
    first, second = (noise.gaussian(1e6, 50, SecureBits()) for _ in range(2))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("probability", [0.001, 0.3, 0.5 - 4e-6, 0.9])
def test_coins_fall_as_often_as_they_should(probability: float) -> None:
    heads = int(noise.bernoulli(probability, 500_000, SeededBits(8)).sum())
    assert stats.binomtest(heads, 500_000, probability).pvalue > SURPRISE


def test_coins_at_the_ends_need_no_luck() -> None:
    assert noise.bernoulli(1.0, 100, SeededBits(1)).all()
    assert not noise.bernoulli(0.0, 100, ListedBits(*([0] * 100))).any()


def test_a_coin_is_compared_to_the_last_bit_of_its_probability() -> None:
    probability = 3 * 2.0**-66
    threshold = 3 << 62
    assert not noise.bernoulli(probability, 1, ListedBits(1))[0]
    assert noise.bernoulli(probability, 1, ListedBits(0, threshold - 1))[0]
    assert not noise.bernoulli(probability, 1, ListedBits(0, threshold))[0]
    assert noise.bernoulli(0.5, 1, ListedBits(2**63 - 1))[0]
    assert not noise.bernoulli(0.5, 1, ListedBits(2**63))[0]


def test_a_coin_whose_first_word_is_a_tie_is_decided_by_what_is_left_of_its_probability() -> None:
    probability = 2.0**-13 + 2.0**-65
    assert noise.bernoulli(probability, 1, ListedBits(2**51 - 1))[0]
    assert noise.bernoulli(probability, 1, ListedBits(2**51, 2**63 - 1))[0]
    assert not noise.bernoulli(probability, 1, ListedBits(2**51, 2**63))[0]
    assert not noise.bernoulli(probability, 1, ListedBits(2**51 + 1))[0]


@pytest.mark.parametrize("probability", [-1.0, -1e-9, 1 + 1e-9, 1.5, 2.0, float("nan")])
def test_what_is_no_probability_is_refused(probability: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        noise.bernoulli(probability, 1, SeededBits(1))


@pytest.mark.parametrize("n", [-1, 0, 2**63 + 1, 2**64])
def test_a_range_that_cannot_be_drawn_from_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match="cannot be drawn"):
        noise.uniform_below(n, 1, SeededBits(1))


def test_the_smallest_and_the_largest_range_can_be_drawn_from() -> None:
    assert noise.uniform_below(1, 3, ListedBits(5, 0, 2**64 - 1)).tolist() == [0, 0, 0]
    words = ListedBits(2**63 - 1, 2**63, 2**64 - 1)
    assert noise.uniform_below(2**63, 3, words).tolist() == [2**63 - 1, 0, 2**63 - 1]


def test_uniform_integers_are_uniform() -> None:
    drawn = noise.uniform_below(7, 140_000, SeededBits(9))
    assert stats.chisquare(np.bincount(drawn, minlength=7)).pvalue > SURPRISE


def test_words_beyond_the_last_multiple_are_drawn_again() -> None:
    n = 3 << 61  # Two multiples fit into 64 bits, a quarter of all words does not.
    bits = ListedBits(2 * n, n + 5, 2**64 - 1, 2 * n - 1)
    assert noise.uniform_below(n, 2, bits).tolist() == [5, n - 1]


def test_every_order_is_equally_likely() -> None:
    bits = SeededBits(10)
    orders = Counter(tuple(noise.permutation(4, bits)) for _ in range(12_000))
    assert len(orders) == 24
    assert stats.chisquare(list(orders.values())).pvalue > SURPRISE


def test_equal_keys_do_not_favour_an_order() -> None:
    bits = ListedBits(7, 7, 1, 9, 8, 3)
    assert noise.permutation(3, bits).tolist() == [2, 1, 0]


def test_the_sum_of_fair_coins_is_binomial() -> None:
    heads = noise.bernoulli(0.5, (20_000, 4), SeededBits(11)).sum(axis=1)
    expected = [comb(4, k) / 16 * 20_000 for k in range(5)]
    assert stats.chisquare(np.bincount(heads, minlength=5), expected).pvalue > SURPRISE
