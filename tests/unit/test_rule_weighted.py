"""Weights: what a silo's ballot counts, by the task, by its size, and by its noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from consensus_scenes import box, elections, held, silos, task
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.consensus.weights import DOUBLINGS, weights_of
from wire.privacy.declaration import Declaration

Votes = npt.NDArray[np.int32]
NOISY = Declaration(one_if_voted=0.55, one_if_not=0.45)


def sized(*sizes: int | None) -> dict[str, Declaration]:
    return {
        name: Declaration(units_log2=size)
        for name, size in zip(silos(len(sizes)), sizes, strict=True)
    }


def by_size(*sizes: int | None) -> list[int]:
    definition = task(8, 2, "weighted", consensus={"credibility": "data_size"})
    return list(weights_of(definition, sized(*sizes)).values())


def set_to(weights: dict[str, int], **more: Any) -> Any:
    return task(8, 2, "weighted", consensus={"weights": weights}, **more)


@pytest.mark.parametrize(
    ("sizes", "weights"),
    [
        ((7, 7, 7), [1, 1, 1]),
        ((5, 6, 7, 8, 9), [1, 2, 4, 8, 16]),
        ((6, 7, 40), [1, 2, 16]),
        ((0, 7, 8), [1, 8, 16]),
        ((None, 7, 8, 8), [1, 4, 8, 8]),
        ((None, None), [1, 1]),
        ((9,), [1]),
    ],
)
def test_sizes_count_within_three_doublings_of_the_middle(
    sizes: tuple[int | None, ...], weights: list[int]
) -> None:
    assert by_size(*sizes) == weights


@given(st.lists(st.integers(0, 62), min_size=3, max_size=9), st.integers(0, 62))
def test_nobody_counts_more_than_eight_times_the_middle_whatever_it_declares(
    sizes: list[int], claimed: int
) -> None:
    weights = by_size(*sizes, claimed)
    assert max(weights) <= 2 ** (2 * DOUBLINGS) * min(weights)
    assert weights[-1] <= 2**DOUBLINGS * sorted(weights)[(len(weights) - 1) // 2]


def test_a_giant_moves_nobody_but_itself() -> None:
    honest = by_size(5, 6, 7, 8, 8)
    lied = by_size(5, 6, 7, 8, 62)
    assert honest == [1, 2, 4, 8, 8]
    assert lied == [1, 2, 4, 8, 32]


def test_set_weights_count_as_written_and_unnamed_silos_one() -> None:
    weights = weights_of(set_to({"silo-00": 5, "silo-01": 0}), sized(None, None, None))
    assert weights == {"silo-00": 5, "silo-01": 0, "silo-02": 1}


def test_noise_and_credibility_multiply() -> None:
    definition = set_to({"silo-00": 3}, encoding="one_hot")
    declared = {"silo-00": NOISY, "silo-01": Declaration(), "silo-02": NOISY}
    assert weights_of(definition, declared) == {"silo-00": 3, "silo-01": 8, "silo-02": 1}
    unset = task(8, 2, encoding="one_hot")
    assert weights_of(unset, declared) == {"silo-00": 1, "silo-01": 8, "silo-02": 1}


def test_only_ratios_matter_and_each_ballot_of_fedkt_counts_its_students() -> None:
    assert weights_of(set_to({"silo-00": 10, "silo-01": 4}), sized(None, None)) == {
        "silo-00": 5,
        "silo-01": 2,
    }
    fedkt = task(8, 2, method="fedkt", fedkt={"partitions": 3})
    assert weights_of(fedkt, sized(None, None)) == {"silo-00": 3, "silo-01": 3}


def test_no_weight_at_all_gives_no_label() -> None:
    definition = set_to({"silo-00": 0, "elsewhere": 1})
    outcome = held(definition, box([[0] * 8], definition.shape))
    assert outcome.abstained_rows == 8


def test_a_silo_without_weight_has_no_say_and_is_still_compared() -> None:
    definition = set_to({"silo-00": 0, "silo-01": 0, "silo-02": 7})
    outcome = held(definition, box([[0] * 8, [0] * 8, [1] * 8], definition.shape))
    assert outcome.labels().tolist() == [1] * 8
    assert outcome.agreement["silo-00"].compared == 8


@settings(deadline=None)
@given(elections(), st.integers(1, 1000))
def test_equal_weights_are_the_majority(election: tuple[Votes, int], weight: int) -> None:
    votes, classes = election
    names = dict.fromkeys(silos(len(votes)), weight)
    weighted = task(votes.shape[1], classes, "weighted", consensus={"weights": names})
    ballots = box(votes, weighted.shape)
    # Ties hang on the task's digest, which weights are part of.
    counts = np.apply_along_axis(np.bincount, 0, votes + 1, minlength=classes + 1)[1:]
    clear = np.sort(counts, axis=0)[-1] > np.sort(counts, axis=0)[-2]
    labels = held(weighted, ballots).labels()
    np.testing.assert_array_equal(labels[clear], counts.argmax(axis=0)[clear])
    plain = held(task(votes.shape[1], classes), ballots).labels()
    np.testing.assert_array_equal(labels[clear], plain[clear])


@settings(deadline=None)
@given(elections(silos=5), st.lists(st.integers(0, 9), min_size=5, max_size=5))
def test_a_silo_that_counts_three_is_three_silos(
    election: tuple[Votes, int], weights: list[int]
) -> None:
    votes, classes = election
    given_weights = dict(zip(silos(len(votes)), weights, strict=False))
    given_weights["elsewhere"] = 1
    definition = task(votes.shape[1], classes, "weighted", consensus={"weights": given_weights})
    outcome = held(definition, box(votes, definition.shape))
    repeated = np.repeat(votes, [given_weights[name] for name in silos(len(votes))], axis=0)
    counts = np.zeros((classes, votes.shape[1]), dtype=int)
    for row in repeated:
        cast = np.flatnonzero(row >= 0)
        counts[row[cast], cast] += 1
    ordered = np.sort(counts, axis=0)
    clear = ordered[-1] > ordered[-2]
    np.testing.assert_array_equal(outcome.labels()[clear], counts.argmax(axis=0)[clear])
    assert (outcome.labels()[ordered[-1] == 0] == -1).all()
