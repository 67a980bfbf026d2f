"""Rules publish the label the votes call for, break ties fairly and identically, and abstain else."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coordinator.consensus import (
    QualifiedMajority,
    Rule,
    Tally,
    TieKey,
    changed_rows,
    form_consensus,
    majority,
    rule_for,
    rules,
)
from wire.ballot import ABSTAIN, BallotShape, Encoding, pack
from wire.task.consensus_policy import ConsensusPolicy, RuleName

KEY = TieKey.of("ab" * 32, 3)
WORD = 2**64

counts_of_rows = hnp.arrays(
    np.uint8,
    st.tuples(st.integers(1, 30), st.integers(1, 7)),
    elements=st.integers(0, 4),
)


def plain_rank(task_digest: str, round_number: int, row: int, index: int) -> int:
    """The documented tie rule in Python's integers, one row and class at a time."""

    def mix(z: int) -> int:
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % WORD
        z = (z ^ z >> 27) * 0x94D049BB133111EB % WORD
        return z ^ z >> 31

    text = f"consilium/tie/v1\n{task_digest}\n{round_number}\n".encode()
    key = int.from_bytes(hashlib.sha256(text).digest()[:8], "big")
    step = 0x9E3779B97F4A7C15
    return mix((mix((key + (row + 1) * step) % WORD) + (index + 1) * step) % WORD)


def plain_majority(votes: list[int], row: int) -> int:
    if not any(votes):
        return ABSTAIN
    leading = [index for index, count in enumerate(votes) if count == max(votes)]
    return max(leading, key=lambda index: plain_rank("ab" * 32, 3, row, index))


def all_tied(rows: int, classes: int, among: list[int]) -> npt.NDArray[np.uint8]:
    counts = np.zeros((rows, classes), dtype=np.uint8)
    counts[:, among] = 2
    return counts


# -- majority and ties --------------------------------------------------------------------------------


def test_the_class_with_most_votes_wins() -> None:
    counts = np.array([[3, 1, 1], [0, 2, 3], [1, 4, 0]], dtype=np.uint8)
    assert majority(counts, 0, KEY).tolist() == [0, 2, 1]


def test_a_row_without_votes_abstains() -> None:
    counts = np.array([[0, 0, 0], [0, 1, 0]], dtype=np.uint8)
    assert majority(counts, 0, KEY).tolist() == [ABSTAIN, 1]


@given(counts_of_rows, st.integers(0, 2**40))
def test_majority_follows_the_documented_rule_to_the_letter(
    counts: npt.NDArray[np.uint8], first_row: int
) -> None:
    expected = [plain_majority(votes, first_row + n) for n, votes in enumerate(counts.tolist())]
    assert majority(counts, first_row, KEY).tolist() == expected


def test_more_than_255_classes_are_told_apart() -> None:
    counts = np.zeros((3, 700), dtype=np.uint8)
    counts[[0, 1, 2], [255, 256, 699]] = 1
    assert majority(counts, 0, KEY).tolist() == [255, 256, 699]


@pytest.mark.parametrize(
    ("among", "limit"), [([0, 1], 23.9), ([1, 3, 4], 27.6), ([0, 1, 2, 3, 4], 33.4)]
)
def test_ties_fall_on_every_tied_class_equally_often(among: list[int], limit: float) -> None:
    rows = 60_000
    labels = majority(all_tied(rows, 5, among), 0, KEY)
    drawn = np.bincount(labels, minlength=5)
    expected = rows / len(among)
    # Chi-square with len(among) - 1 degrees of freedom, exceeded by chance once in a million.
    assert np.sum((drawn[among] - expected) ** 2 / expected) < limit
    assert drawn.sum() == drawn[among].sum()


def test_neighbouring_rows_and_rounds_fall_independently() -> None:
    counts = all_tied(40_000, 2, [0, 1])
    first, second = (majority(counts, 0, TieKey.of("ab" * 32, n)) for n in (1, 2))
    # Standard deviation of either share is 0.0025.
    assert abs(np.mean(first == second) - 0.5) < 0.0125
    assert abs(np.mean(first[1:] == first[:-1]) - 0.5) < 0.0125


def test_the_same_tie_falls_the_same_way_again() -> None:
    counts = all_tied(1000, 3, [0, 2])
    again = TieKey.of("ab" * 32, 3)
    np.testing.assert_array_equal(majority(counts, 50, KEY), majority(counts, 50, again))


def test_tie_keys_differ_by_task_and_by_round() -> None:
    keys = {TieKey.of(task, number).value for task in ("aa", "bb") for number in (1, 2, 11, 12)}
    assert len(keys) == 8


# -- qualified majority -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("votes", "label"),
    [
        ([9, 1, 0], 0),
        ([8, 1, 1], ABSTAIN),
        ([0, 1, 0], 1),
        ([0, 0, 0], ABSTAIN),
        ([18, 1, 1], 0),
        ([17, 2, 0], ABSTAIN),
    ],
)
def test_nine_tenths_of_the_votes_cast_are_enough_and_less_is_not(
    votes: list[int], label: int
) -> None:
    counts = np.array([votes], dtype=np.uint8)
    assert QualifiedMajority(900)(counts, 0, KEY).tolist() == [label]


def test_shares_are_exact_where_small_types_would_overflow() -> None:
    counts = np.array([[200, 100], [199, 101]], dtype=np.uint8)
    assert QualifiedMajority(666)(counts, 0, KEY).tolist() == [0, ABSTAIN]


def test_all_of_the_votes_are_not_one_less_than_all() -> None:
    counts = np.array([[1001, 0], [1000, 1]], dtype=np.uint16)
    assert QualifiedMajority(1000)(counts, 0, KEY).tolist() == [0, ABSTAIN]


def test_a_thousandth_is_the_least_share_and_a_whole_the_largest() -> None:
    counts = np.array([[2, 1]], dtype=np.uint8)
    assert QualifiedMajority(1)(counts, 0, KEY).tolist() == [0]
    for permille in (0, 1001):
        with pytest.raises(ValueError, match="1 to 1000 thousandths"):
            QualifiedMajority(permille)


def test_a_tied_row_that_reaches_the_share_falls_as_in_a_majority() -> None:
    counts = all_tied(200, 2, [0, 1])
    qualified = QualifiedMajority(500)(counts, 0, KEY)
    np.testing.assert_array_equal(qualified, majority(counts, 0, KEY))
    assert (QualifiedMajority(501)(counts, 0, KEY) == ABSTAIN).all()


# -- the rule of a task -------------------------------------------------------------------------------


def test_a_task_gets_the_rule_it_names() -> None:
    assert rule_for(ConsensusPolicy(rule=RuleName.MAJORITY)) is majority
    qualified = rule_for(ConsensusPolicy(rule=RuleName.QUALIFIED_MAJORITY, min_share=0.9))
    assert qualified == QualifiedMajority(900)


def test_weights_and_certainties_are_in_the_counts_already() -> None:
    assert rule_for(ConsensusPolicy(rule=RuleName.WEIGHTED, weights={"a": 2})) is majority
    assert rule_for(ConsensusPolicy(rule=RuleName.CERTAINTY_WEIGHTED)) is majority


@pytest.mark.parametrize("name", ["per_class_threshold", "staple", "trimmed"])
def test_rules_that_read_ballots_cannot_do_with_counts(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} needs more than counts"):
        rule_for(ConsensusPolicy(rule=RuleName(name)))


# -- forming and churn --------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [majority, QualifiedMajority(600)])
@pytest.mark.parametrize("encoding", Encoding)
def test_a_consensus_does_not_depend_on_the_size_of_blocks(
    rule: Rule, encoding: Encoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(2)
    shape = BallotShape(500, 4, encoding)
    tally = Tally(shape)
    for _ in range(6):
        tally.add(pack(random.integers(-1, 4, shape.rows), shape))
    whole = rule(tally.counts(), 0, KEY)
    monkeypatch.setattr(rules, "ROW_BLOCK", 33)
    labels = form_consensus(tally, rule, KEY)
    np.testing.assert_array_equal(labels, whole)
    assert labels.dtype == np.int32


def test_a_consensus_of_agreeing_silos_is_what_they_agree_on() -> None:
    labels = np.array([0, 2, ABSTAIN, 1, 1])
    shape = BallotShape(5, 3, Encoding.INDEX)
    tally = Tally(shape)
    for _ in range(3):
        tally.add(pack(labels, shape))
    formed = form_consensus(tally, QualifiedMajority(1000), KEY)
    np.testing.assert_array_equal(formed, labels)
    assert pack(formed, shape) == pack(labels, shape)


def test_changed_rows_count_labels_that_came_went_or_moved() -> None:
    before = np.array([0, 1, ABSTAIN, 2, ABSTAIN], dtype=np.int32)
    after = np.array([0, 2, 1, ABSTAIN, ABSTAIN], dtype=np.int32)
    assert changed_rows(before, after) == 3
    assert changed_rows(after, after) == 0


def test_a_first_consensus_changes_every_row() -> None:
    assert changed_rows(None, np.array([ABSTAIN, 1], dtype=np.int32)) == 2


def test_consensuses_of_different_public_sets_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="one public set"):
        changed_rows(np.zeros(2, dtype=np.int32), np.zeros(3, dtype=np.int32))
