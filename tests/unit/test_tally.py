"""A tally counts every vote once, whatever the sizes, and needs no memory per ballot."""

from __future__ import annotations

import tracemalloc
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.consensus import Tally
from coordinator.consensus import tally as tally_module
from experiments.bench import Measurement
from experiments.bench import tally as bench
from wire import errors
from wire.ballot import BEST_SCORE, BallotShape, Encoding, pack, pack_one_hot, pack_scored

Votes: TypeAlias = npt.NDArray[np.integer]


def tally_of(shape: BallotShape) -> Tally:
    """A tally that counts all a ballot says, certainties included."""
    return Tally(shape, certainties=shape.encoding is Encoding.SCORED)


def votes_of(shape: BallotShape, random: np.random.Generator) -> Votes:
    """What one silo adds to each (row, class): any ones for ONE_HOT, one class per row for the others."""
    if shape.encoding is Encoding.ONE_HOT:
        return (random.random((shape.rows, shape.classes)) < random.random()).astype(int)
    labels = random.integers(-1, shape.classes, shape.rows)
    votes = np.equal.outer(labels, np.arange(shape.classes)).astype(int)
    if shape.encoding is Encoding.SCORED:
        votes *= random.integers(0, BEST_SCORE + 1, shape.rows)[:, None]
    return votes


def packed(votes: Votes, shape: BallotShape) -> bytes:
    if shape.encoding is Encoding.ONE_HOT:
        return pack_one_hot(votes > 0, shape)
    labels = np.where(votes.any(axis=1), votes.argmax(axis=1), -1)
    if shape.encoding is Encoding.SCORED:
        return pack_scored(labels, votes.max(axis=1), shape)
    return pack(labels, shape)


shapes = st.builds(
    BallotShape,
    rows=st.integers(1, 90),
    classes=st.integers(1, 12),
    encoding=st.sampled_from(Encoding),
)


@settings(deadline=None)
@given(shapes, st.integers(1, 40), st.integers(0, 2**32), st.sets(st.integers(0, 40)))
def test_counts_equal_the_plain_sum_also_between_ballots(
    shape: BallotShape, ballots: int, seed: int, looks: set[int]
) -> None:
    random = np.random.default_rng(seed)
    tally, expected = tally_of(shape), np.zeros((shape.rows, shape.classes), dtype=int)
    for number in range(ballots):
        if number in looks:
            np.testing.assert_array_equal(tally.counts(), expected)
        votes = votes_of(shape, random)
        tally.add(packed(votes, shape))
        expected += votes
    np.testing.assert_array_equal(tally.counts(), expected)
    assert tally.ballots == ballots


@settings(deadline=None)
@given(
    shapes,
    st.lists(st.one_of(st.integers(0, 9), st.integers(0, 2000)), min_size=1, max_size=40),
    st.integers(0, 2**32),
    st.sets(st.integers(0, 40)),
)
def test_weighted_ballots_count_as_often_as_their_weight_says(
    shape: BallotShape, weights: list[int], seed: int, looks: set[int]
) -> None:
    random = np.random.default_rng(seed)
    tally, expected = tally_of(shape), np.zeros((shape.rows, shape.classes), dtype=int)
    for number, weight in enumerate(weights):
        if number in looks:
            np.testing.assert_array_equal(tally.counts(), expected)
        votes = votes_of(shape, random)
        tally.add(packed(votes, shape), weight)
        expected += weight * votes
    np.testing.assert_array_equal(tally.counts(), expected)
    assert tally.ballots == len(weights)


def test_a_ballot_cannot_count_less_than_nothing() -> None:
    shape = BallotShape(9, 2, Encoding.INDEX)
    with pytest.raises(ValueError, match="cannot count -1"):
        Tally(shape).add(pack(np.zeros(9, dtype=int), shape), -1)


def test_certainties_count_only_where_they_are_asked_for() -> None:
    shape = BallotShape(4, 2, Encoding.SCORED)
    ballot = pack_scored(np.array([0, 1, -1, 0]), np.array([3, 15, 0, 0]), shape)
    once, certain = Tally(shape), Tally(shape, certainties=True)
    for tally in (once, certain):
        tally.add(ballot, 2)
    assert once.counts().tolist() == [[2, 0], [0, 2], [0, 0], [2, 0]]
    assert certain.counts().tolist() == [[6, 0], [0, 30], [0, 0], [0, 0]]


@pytest.mark.parametrize("encoding", [Encoding.ONE_HOT, Encoding.INDEX])
def test_ballots_without_certainties_cannot_be_counted_by_them(encoding: Encoding) -> None:
    with pytest.raises(ValueError, match="hold no certainties"):
        Tally(BallotShape(4, 2, encoding), certainties=True)


def test_the_type_of_counts_holds_the_total_weight_and_no_more() -> None:
    shape = BallotShape(9, 2, Encoding.SCORED)
    tally = tally_of(shape)
    ballot = pack(np.zeros(9, dtype=int), shape)
    tally.add(ballot, 17)
    assert tally.counts().dtype == np.uint8
    assert tally.counts().tolist() == [[255, 0]] * 9
    tally.add(ballot)
    assert tally.counts().dtype == np.uint16
    assert tally.counts().tolist() == [[270, 0]] * 9


@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize("block", [1, 7, 64])
def test_counts_do_not_depend_on_the_size_of_blocks(
    encoding: Encoding, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tally_module, "_BLOCK_BYTES", block)
    random = np.random.default_rng(block)
    shape = BallotShape(203, 5, encoding)
    cast = [votes_of(shape, random) for _ in range(37)]
    weights = [1 + number % 6 for number in range(37)]
    tally = tally_of(shape)
    for votes, weight in zip(cast, weights, strict=True):
        tally.add(packed(votes, shape), weight)
    np.testing.assert_array_equal(tally.counts(), np.einsum("b,brc->rc", weights, cast))


def test_a_public_set_larger_than_a_block_is_counted() -> None:
    random = np.random.default_rng(5)
    shape = BallotShape(400_003, 4, Encoding.ONE_HOT)
    assert shape.size_bytes > tally_module._BLOCK_BYTES
    cast = [votes_of(shape, random) for _ in range(5)]
    tally = Tally(shape)
    for votes in cast:
        tally.add(packed(votes, shape))
    np.testing.assert_array_equal(tally.counts(), np.sum(cast, axis=0))


@given(st.integers(0, 61), st.integers(0, 61))
def test_a_range_of_rows_is_that_part_of_the_whole(one: int, other: int) -> None:
    start, stop = sorted((one, other))
    random = np.random.default_rng(1)
    shape = BallotShape(61, 3, Encoding.INDEX)
    tally = Tally(shape)
    for _ in range(6):
        tally.add(packed(votes_of(shape, random), shape))
    np.testing.assert_array_equal(tally.counts(start, stop), tally.counts()[start:stop])


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (4, 3), (0, 11)])
def test_rows_outside_the_public_set_have_no_counts(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="not within 0 to 10"):
        Tally(BallotShape(10, 2, Encoding.INDEX)).counts(start, stop)


@pytest.mark.parametrize(
    ("ballots", "dtype"), [(255, np.uint8), (256, np.uint16), (300, np.uint16)]
)
def test_the_type_of_counts_holds_as_many_votes_as_there_are_ballots(
    ballots: int, dtype: type
) -> None:
    shape = BallotShape(9, 2, Encoding.ONE_HOT)
    tally = Tally(shape)
    for _ in range(ballots):
        tally.add(pack_one_hot(np.tile([True, False], (9, 1)), shape))
    assert tally.counts().dtype == dtype
    assert tally.counts().tolist() == [[ballots, 0]] * 9


def test_nothing_added_counts_zero() -> None:
    tally = Tally(BallotShape(9, 2, Encoding.INDEX))
    assert tally.ballots == 0
    assert tally.counts().tolist() == [[0, 0]] * 9
    assert tally.counts(2, 5).shape == (3, tally.shape.classes)


def test_a_ballot_of_another_length_is_refused_and_not_counted() -> None:
    tally = Tally(BallotShape(9, 2, Encoding.INDEX))
    with pytest.raises(errors.Refusal) as raised:
        tally.add(bytes(5))
    assert raised.value.is_a(errors.BALLOT_LENGTH)
    assert tally.ballots == 0
    assert not tally.counts().any()


@pytest.mark.parametrize("encoding", Encoding)
def test_memory_does_not_grow_with_the_number_of_ballots(encoding: Encoding) -> None:
    shape = BallotShape(40_000, 4, encoding)

    def peak_of(ballots: int) -> int:
        random = np.random.default_rng(0)
        tracemalloc.start()
        try:
            tally = Tally(shape)
            for _ in range(ballots):
                tally.add(pack(random.integers(-1, 4, shape.rows), shape))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    # From 64 to 512 ballots the counters gain three bits; every bit is one slice and two carries.
    one_bit = 3 * BallotShape(40_000, 4, Encoding.ONE_HOT).size_bytes
    assert peak_of(512) - peak_of(64) <= 4 * one_bit


# -- the benchmark --------------------------------------------------------------------------------------


def test_a_measurement_knows_whether_its_promise_is_kept() -> None:
    assert Measurement.at_most("a", 4.0, "×", 4).met is True
    assert Measurement.at_most("a", 4.1, "×", 4).met is False
    assert Measurement.at_least("a", 3.0, "×", 3).met is True
    assert Measurement.at_least("a", 2.9, "×", 3).target == "≥ 3"
    assert Measurement("a", 1.0, "ms").met is None


def test_ballots_of_the_papers_setting_have_the_papers_sizes() -> None:
    measured = {row.name: row for row in bench.sizes()}
    assert measured["one-hot ballot, 10000 rows, 10 classes"].value == 12_500
    assert measured["index ballot, 10000 rows, 10 classes"].value == 5_000
    assert measured["FedAvg upload, 669706 weights"].value == 2_678_824
    assert all(row.met is not False for row in measured.values())


def test_the_benchmark_reports_its_promised_ratios() -> None:
    rows = bench.run(rows=1000, classes=3, ballots=4, repeats=1)
    promised = {row.name: row.target for row in rows if row.target and row.unit == "×"}
    assert promised["tally / copy"] == "≤ 4"
    assert promised["unpackbits / tally and all counts"] == "≥ 3"
    assert all(row.value > 0 for row in rows)
