"""Trimming leaves out those the others contradict, only if it is clear, and never more than allowed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from consensus_scenes import elections, poll, silos
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.consensus import form_consensus, majority
from coordinator.consensus.trimmed import Disagreement, Trimmed, disagreements
from wire.ballot import ABSTAIN

Votes = npt.NDArray[np.int32]


def plain_disagreement(votes: Votes, silo: int, classes: int, weights: list[int]) -> Disagreement:
    """Row by row: the majority of the others, if there is one, against the silo."""
    compared = differing = 0
    for column in votes.T:
        counts = [0] * classes
        for other, vote in enumerate(column):
            if other != silo and vote != ABSTAIN:
                counts[vote] += weights[other]
        ordered = sorted(counts)
        if column[silo] != ABSTAIN and ordered[-1] > ordered[-2]:
            compared += 1
            differing += counts.index(ordered[-1]) != column[silo]
    return Disagreement(compared, differing)


@settings(deadline=None)
@given(elections(), st.lists(st.integers(0, 4), min_size=7, max_size=7))
def test_every_silo_is_measured_by_the_majority_of_the_others(
    election: tuple[Votes, int], drawn: list[int]
) -> None:
    votes, classes = election
    weights = drawn[: len(votes)]
    polled = poll(votes, classes, weights)
    found = disagreements(polled, polled.tally())
    for number, name in enumerate(silos(len(votes))):
        assert found[name] == plain_disagreement(votes, number, classes, weights)


def left_out(disagreeing: list[int], permille: int, compared: int = 1000) -> list[int]:
    found = {str(number): Disagreement(compared, each) for number, each in enumerate(disagreeing)}
    return sorted(int(name) for name in Trimmed(permille).left_out(found))


@pytest.mark.parametrize(
    ("disagreeing", "permille", "expected"),
    [
        ([100, 110, 90, 105, 500], 200, [4]),
        ([100, 110, 90, 105, 500], 199, []),
        ([100, 110, 90, 105, 140], 200, []),
        ([100, 110, 90, 105, 100, 95, 100, 101, 600, 700], 200, [8, 9]),
        ([100, 110, 90, 105, 100, 95, 100, 101, 600, 700], 100, [9]),
        ([100, 110, 90, 105, 100, 95, 100, 101, 700, 700], 100, []),
        ([100, 110, 90, 105, 100, 95, 100, 101, 100, 700], 499, [9]),
        ([0, 0, 0, 0, 2], 200, []),
        ([0, 0, 0, 0, 4], 200, [4]),
        ([300], 400, []),
        ([100, 100, 900], 333, []),
        ([100, 100, 100, 400, 600], 200, [4]),
    ],
)
def test_who_is_left_out(disagreeing: list[int], permille: int, expected: list[int]) -> None:
    assert left_out(disagreeing, permille) == expected


def test_few_rows_prove_nothing() -> None:
    assert left_out([2, 2, 2, 2, 5], 200, compared=10) == []
    assert left_out([200, 200, 200, 200, 500], 200, compared=1000) == [4]


def test_half_as_much_again_as_the_middle_silo_is_not_clearly_more() -> None:
    assert left_out([100_000] * 4 + [150_000], 200, compared=10**6) == []
    assert left_out([100_000] * 4 + [150_001], 200, compared=10**6) == [4]


def test_chance_explains_three_standard_errors() -> None:
    # Of a tenth of 100 rows one is 3 rows; of half of 80 rows, 4.5.
    assert left_out([10] * 4 + [18], 200, compared=100) == []
    assert left_out([10] * 4 + [20], 200, compared=100) == [4]
    assert left_out([40] * 4 + [61], 200, compared=80) == [4]


def test_silos_that_were_never_compared_are_not_judged_and_do_not_add_to_the_share() -> None:
    found = {str(number): Disagreement(100, 10) for number in range(4)}
    silent = {f"silent-{number}": Disagreement(0, 0) for number in range(4)}
    broken = {"broken": Disagreement(100, 90)}
    assert Trimmed(200).left_out(found | broken) == {"broken"}
    assert Trimmed(200).left_out(found | silent) == frozenset()
    assert Trimmed(124).left_out(found | silent | broken) == frozenset()


def test_a_hostile_silo_loses_its_vote_and_honest_ones_keep_theirs() -> None:
    random = np.random.default_rng(1)
    truth = random.integers(0, 3, 800)
    honest = [
        np.where(random.random(800) < 0.8, truth, random.integers(0, 3, 800)) for _ in range(4)
    ]
    all_honest = poll(honest, 3)
    labels = Trimmed(250)(all_honest)
    np.testing.assert_array_equal(
        labels, form_consensus(all_honest.tally(), majority, all_honest.key)
    )
    attacked = poll([*honest, (truth + 1) % 3], 3)
    np.testing.assert_array_equal(Trimmed(250)(attacked), labels)
    assert (Trimmed(0)(attacked) != labels).any()


@pytest.mark.parametrize("permille", [-1, 500])
def test_less_than_half_can_be_trimmed(permille: int) -> None:
    with pytest.raises(ValueError, match="0 to 499"):
        Trimmed(permille)
