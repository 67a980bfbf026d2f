"""Weighted decoding: the plain sum where silos are alike, better than it where they are not, bounded always."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.consensus import Tally, TieKey, form_consensus, majority
from coordinator.consensus.noise_weights import (
    EXPERT,
    HEAVIEST,
    LIGHTEST,
    ballot_weights,
    log_odds,
)
from wire.ballot import ABSTAIN, BallotShape, Encoding, pack, pack_one_hot
from wire.privacy.declaration import Declaration, MechanismName

KEY = TieKey.of("cd" * 32, 1)
CLASSES = 10
ROWS = 20_000


def flips(p: float) -> Declaration:
    """Every bit of a one-hot ballot is flipped with probability p."""
    return Declaration(mechanism=MechanismName.XOR, epsilon=1.0, one_if_voted=1 - p, one_if_not=p)


def response(kept: float, classes: int = CLASSES) -> Declaration:
    """A label is kept with probability `kept`, else it becomes any other."""
    return Declaration(
        mechanism=MechanismName.RANDOMIZED_RESPONSE,
        epsilon=1.0,
        one_if_voted=kept,
        one_if_not=(1 - kept) / (classes - 1),
    )


def unary(kept: float, false: float) -> Declaration:
    """A one stays a one with probability `kept`; a zero becomes one with probability `false`."""
    return Declaration(
        mechanism=MechanismName.RANDOMIZED_RESPONSE,
        epsilon=1.0,
        one_if_voted=kept,
        one_if_not=false,
    )


def experts(
    truth: npt.NDArray[np.int64], silos: int, random: np.random.Generator
) -> list[npt.NDArray[np.int64]]:
    """Labels of silos that are right with the assumed probability."""
    off = random.integers(1, CLASSES, (silos, len(truth)))
    wrong = random.random((silos, len(truth))) >= EXPERT
    return list((truth + off * wrong) % CLASSES)


def cast(
    labels: npt.NDArray[np.int64],
    declared: Declaration,
    shape: BallotShape,
    random: np.random.Generator,
) -> bytes:
    """A ballot whose noise is as declared."""
    if shape.encoding is Encoding.ONE_HOT:
        one = np.where(
            np.equal.outer(labels, np.arange(CLASSES)), declared.one_if_voted, declared.one_if_not
        )
        return pack_one_hot(random.random(one.shape) < one, shape)
    off = random.integers(1, CLASSES, len(labels))
    exchanged = random.random(len(labels)) >= declared.one_if_voted
    return pack((labels + off * exchanged) % CLASSES, shape)


def consensus(
    ballots: Sequence[bytes], weights: Sequence[int], shape: BallotShape
) -> npt.NDArray[np.int32]:
    tally = Tally(shape)
    for ballot, weight in zip(ballots, weights, strict=True):
        tally.add(ballot, weight)
    return form_consensus(tally, majority, KEY)


rates = st.builds(unary, st.floats(0, 1), st.floats(0, 1))


# -- alike ----------------------------------------------------------------------------------------------


@given(rates, st.integers(1, 30), st.integers(2, 50), st.sampled_from(Encoding))
def test_silos_that_declare_the_same_rates_count_one_each(
    declared: Declaration, silos: int, classes: int, encoding: Encoding
) -> None:
    assert ballot_weights([declared] * silos, classes, encoding) == (1,) * silos


def test_the_same_rates_by_different_mechanisms_are_alike() -> None:
    declared = [Declaration(), Declaration(mechanism=MechanismName.TEACHER_VOTES, epsilon=2.0)]
    assert ballot_weights(declared, CLASSES, Encoding.INDEX) == (1, 1)


def test_equal_flip_rates_give_the_very_bytes_of_the_unweighted_rule() -> None:
    random = np.random.default_rng(3)
    shape = BallotShape(2_000, CLASSES, Encoding.ONE_HOT)
    declared = [flips(0.2)] * 5
    labels = experts(random.integers(0, CLASSES, shape.rows), 5, random)
    ballots = [cast(one, noise, shape, random) for one, noise in zip(labels, declared, strict=True)]
    plain = Tally(shape)
    for ballot in ballots:
        plain.add(ballot)
    weights = ballot_weights(declared, CLASSES, shape.encoding)
    weighted = consensus(ballots, weights, shape)
    expected = form_consensus(plain, majority, KEY)
    assert pack(weighted, shape.as_index()) == pack(expected, shape.as_index())


# -- different ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "declared", "gain"),
    [
        (Encoding.ONE_HOT, [flips(p) for p in (0.05, 0.05, 0.4, 0.4, 0.4)], 0.10),
        (Encoding.ONE_HOT, [unary(0.5, p) for p in (0.01, 0.01, 0.3, 0.3, 0.3)], 0.05),
        (Encoding.INDEX, [response(k) for k in (0.95, 0.95, 0.2, 0.2, 0.2)], 0.05),
    ],
    ids=["flips", "unary", "k-ary"],
)
def test_where_silos_differ_the_weighted_sum_is_right_more_often(
    encoding: Encoding, declared: list[Declaration], gain: float
) -> None:
    random = np.random.default_rng(4)
    shape = BallotShape(ROWS, CLASSES, encoding)
    truth = random.integers(0, CLASSES, ROWS)
    ballots = [
        cast(labels, noise, shape, random)
        for labels, noise in zip(experts(truth, 5, random), declared, strict=True)
    ]
    plain = np.mean(consensus(ballots, [1] * 5, shape) == truth)
    weights = ballot_weights(declared, CLASSES, encoding)
    weighted = np.mean(consensus(ballots, weights, shape) == truth)
    # A standard deviation of either is below 0.004.
    assert weighted > plain + gain, (plain, weighted, weights)


def test_the_weight_of_a_vote_is_its_likelihood_ratio() -> None:
    # Of ten classes an expert at 0.8 names the right one 36 times as often as a certain other one.
    assert log_odds(Declaration(), 10, Encoding.INDEX) == pytest.approx(np.log(36))
    kept = response(0.5)
    right = 0.8 * 0.5 + 0.2 * 0.5 / 9
    assert log_odds(kept, 10, Encoding.INDEX) == pytest.approx(np.log(right / ((1 - right) / 9)))


@pytest.mark.parametrize(("classes", "ratio"), [(1, 4), (2, 4), (3, 8), (10, 36)])
def test_an_experts_errors_are_spread_over_the_other_classes(classes: int, ratio: float) -> None:
    assert log_odds(Declaration(), classes, Encoding.INDEX) == pytest.approx(np.log(ratio))


def test_ballots_that_all_say_little_still_count_by_what_they_say() -> None:
    # 0.63 and 0.31 nats.
    weights = ballot_weights([flips(0.4), flips(0.45)], CLASSES, Encoding.ONE_HOT)
    assert weights[0] / weights[1] == pytest.approx(2, rel=0.05)


def test_less_noise_never_counts_less() -> None:
    declared = [flips(p) for p in (0.0, 0.01, 0.1, 0.2, 0.3, 0.4, 0.45)]
    weights = ballot_weights(declared, CLASSES, Encoding.ONE_HOT)
    assert list(weights) == sorted(weights, reverse=True)
    assert len(set(weights)) >= 5


# -- bounded --------------------------------------------------------------------------------------------


@given(st.lists(rates, min_size=2, max_size=12), st.integers(2, 300), st.sampled_from(Encoding))
def test_no_ballot_that_counts_outweighs_another_by_more_than_eight(
    declared: list[Declaration], classes: int, encoding: Encoding
) -> None:
    weights = ballot_weights(declared, classes, encoding)
    counting = [weight for weight in weights if weight]
    assert counting
    assert max(counting) <= HEAVIEST
    assert max(counting) * LIGHTEST <= min(counting) * HEAVIEST


def test_a_ballot_that_says_next_to_nothing_counts_an_eighth_of_the_most_telling() -> None:
    """The bound that docs/consensus promises: whoever declares too little noise gains a factor of eight by it."""
    assert ballot_weights([Declaration(), flips(0.499)], CLASSES, Encoding.ONE_HOT) == (8, 1)


def test_a_ballot_of_pure_noise_or_against_itself_counts_nothing_among_others() -> None:
    declared = [flips(0.1), flips(0.5), flips(0.9)]
    assert ballot_weights(declared, CLASSES, Encoding.ONE_HOT) == (1, 0, 0)


def test_where_nobody_says_anything_all_count_alike() -> None:
    assert ballot_weights([flips(0.5), flips(0.7)], CLASSES, Encoding.ONE_HOT) == (1, 1)


def test_a_ballot_that_counts_nothing_leaves_its_rows_without_a_vote() -> None:
    shape = BallotShape(4, 2, Encoding.INDEX)
    formed = consensus([pack(np.array([0, 1, 0, 1]), shape)], [0], shape)
    assert formed.tolist() == [ABSTAIN] * 4
