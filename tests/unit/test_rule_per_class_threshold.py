"""Per-class threshold: a class claims a row by its share of those who know it, and by nothing else."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from consensus_scenes import box, elections, held, silos, task
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.consensus.per_class_threshold import PerClassThreshold
from wire.ballot import ABSTAIN, Encoding, unpack_one_hot

Votes = npt.NDArray[np.int32]


def cofed(rows: int, classes: int, threshold: float, **settings: Any) -> Any:
    consensus = {"threshold": threshold, **settings.pop("consensus", {})}
    return task(
        rows,
        classes,
        "per_class_threshold",
        method="cofed",
        consensus=consensus,
        rounds={"max_rounds": 1, "quorum": 1},
        **settings,
    )


@settings(deadline=None)
@given(
    elections(classes=4),
    st.integers(0, 999),
    st.sampled_from(Encoding),
    st.integers(0, 2**32),
)
def test_claims_follow_the_definition_to_the_letter(
    election: tuple[Votes, int], permille: int, encoding: Encoding, seed: int
) -> None:
    votes, classes = election
    random = np.random.default_rng(seed)
    names = silos(len(votes))
    known = {
        name: sorted(random.choice(classes, random.integers(1, classes + 1), replace=False))
        for name in names
    }
    weights = dict(zip(names, random.integers(0, 5, len(names)).tolist(), strict=True))
    weights["elsewhere"] = 1
    definition = cofed(
        votes.shape[1],
        classes,
        permille / 1000,
        encoding=encoding,
        consensus={"weights": weights},
        label_spaces={name: [chr(ord("a") + index) for index in known[name]] for name in names},
    )
    outcome = held(definition, box(votes, definition.shape))
    claimed = unpack_one_hot(outcome.payload, outcome.shape)
    voters = [
        (name, row)
        for name, row in zip(names, votes, strict=True)
        if np.isin(row, known[name]).any()
    ]
    for index in range(classes):
        knowing = [(name, row) for name, row in voters if index in known[name]]
        total = sum(weights[name] for name, _ in knowing)
        for at in range(votes.shape[1]):
            count = sum(weights[name] for name, row in knowing if row[at] == index)
            share = Fraction(count, total) if total else Fraction(0)
            assert claimed[at, index] == (share > Fraction(permille, 1000))


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 7), st.integers(2, 5), st.integers(500, 999))
def test_from_half_on_silos_that_know_all_classes_publish_their_majority_above_the_share(
    seed: int, count: int, classes: int, permille: int
) -> None:
    votes = np.random.default_rng(seed).integers(0, classes, (count, 40))
    definition = cofed(40, classes, permille / 1000)
    labels = held(definition, box(votes, definition.shape)).labels()
    for at, column in enumerate(votes.T):
        counts = np.bincount(column, minlength=classes)
        enough = 1000 * int(counts.max()) > permille * count
        assert labels[at] == (counts.argmax() if enough else ABSTAIN)


def test_a_share_that_is_just_the_threshold_is_not_enough() -> None:
    votes = [[0], [0], [1], [1], [1], [1], [1], [1], [1], [1]]
    for threshold, label in ((0.2, 1), (0.199, ABSTAIN)):
        definition = cofed(1, 2, threshold)
        assert held(definition, box(votes, definition.shape)).labels().tolist() == [label]


def test_at_the_highest_threshold_a_class_needs_all_who_know_it() -> None:
    definition = cofed(2, 2, 0.999)
    ballots = box([[0, 0]] * 4 + [[0, 1]], definition.shape)
    assert held(definition, ballots).labels().tolist() == [0, ABSTAIN]


def test_a_class_few_know_is_claimed_by_the_few() -> None:
    # Class c is known to the last two alone; the others cannot outvote what they have never seen.
    votes = [[0, 1]] * 8 + [[2, 1]] * 2
    spaces = {name: ["a", "b"] for name in silos(8)}
    definition = cofed(2, 3, 0.6, label_spaces=spaces)
    outcome = held(definition, box(votes, definition.shape))
    assert unpack_one_hot(outcome.payload, outcome.shape).tolist() == [
        [True, False, True],
        [False, True, False],
    ]
    assert outcome.labels(definition.label_space("silo-00")).tolist() == [0, 1]
    assert outcome.labels(definition.label_space("silo-09")).tolist() == [ABSTAIN, 1]
    assert outcome.abstained_rows == 1


def test_a_vote_for_a_class_the_silo_does_not_know_counts_nothing() -> None:
    definition = cofed(1, 2, 0.1, label_spaces={"silo-00": ["a"]})
    outcome = held(definition, box([[1], [0]], definition.shape))
    assert outcome.labels().tolist() == [0]


@pytest.mark.parametrize("permille", [-1, 1000])
def test_a_threshold_is_a_share_below_one(permille: int) -> None:
    with pytest.raises(ValueError, match="0 to 999"):
        PerClassThreshold(permille)
