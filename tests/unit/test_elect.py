"""An election depends on votes alone, counts each silo as the task says, and knows who agrees with it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from consensus_scenes import box, elections, held, silos, task
from hypothesis import given, settings
from hypothesis import strategies as st
from seeded_bits import SeededBits

from coordinator.consensus import (
    Agreement,
    agreement,
    labels_for,
    majority,
    per_class_threshold,
    rules,
    staple,
    trimmed,
)
from coordinator.consensus.label_view import planes_for
from coordinator.consensus.ties import ranks
from wire.ballot import ABSTAIN, BallotShape, Encoding, pack, pack_one_hot, pack_scored, unpack
from wire.privacy.declaration import Declaration
from wire.task.consensus_policy import RuleName

Votes = npt.NDArray[np.int32]

SETTINGS: dict[RuleName, dict[str, Any]] = {
    RuleName.MAJORITY: {},
    RuleName.QUALIFIED_MAJORITY: {"consensus": {"min_share": 0.6}},
    RuleName.PER_CLASS_THRESHOLD: {},
    RuleName.WEIGHTED: {"consensus": {"weights": {"silo-00": 3, "silo-01": 0}}},
    RuleName.CERTAINTY_WEIGHTED: {"encoding": "scored"},
    RuleName.STAPLE: {},
    RuleName.TRIMMED: {"consensus": {"trim": 0.4}},
}
EVERY_RULE = pytest.mark.parametrize("rule", RuleName)


def by(rule: RuleName, rows: int, classes: int) -> Any:
    return task(rows, classes, rule, **{**SETTINGS[rule]})


def test_every_rule_is_tried_here() -> None:
    assert set(SETTINGS) == set(RuleName)


@EVERY_RULE
def test_silos_that_agree_are_followed(rule: RuleName) -> None:
    truth = np.array([0, 2, 1, 1, ABSTAIN, 0, 2, 2, 1])
    definition = by(rule, 9, 3)
    outcome = held(definition, box([truth] * 5, definition.shape))
    np.testing.assert_array_equal(outcome.labels(), truth)
    assert outcome.shape == definition.consensus_shape
    assert outcome.abstained_rows == 1
    assert outcome.ballots == 5
    assert outcome.agreement == dict.fromkeys(silos(5), Agreement(8, 8))


@EVERY_RULE
def test_a_set_of_more_rows_than_are_counted_at_one_time_has_no_seam(rule: RuleName) -> None:
    truth = np.random.default_rng(6).integers(ABSTAIN, 3, 65_536 + 77)
    definition = by(rule, len(truth), 3)
    outcome = held(definition, box([truth] * 3, definition.shape))
    np.testing.assert_array_equal(outcome.labels(), truth)


def test_an_outcome_in_a_log_line_shows_no_label() -> None:
    definition = by(RuleName.MAJORITY, 9, 3)
    outcome = held(definition, box([np.zeros(9, dtype=np.int64)] * 3, definition.shape))
    assert "payload" not in repr(outcome)


@EVERY_RULE
@settings(deadline=None, max_examples=30)
@given(election=elections(), seed=st.integers(0, 2**32))
def test_the_order_of_silos_does_not_matter(
    rule: RuleName, election: tuple[Votes, int], seed: int
) -> None:
    votes, classes = election
    definition = by(rule, votes.shape[1], classes)
    ballots = box(votes, definition.shape)
    shuffled = list(ballots.items())
    np.random.default_rng(seed).shuffle(shuffled)
    one, other = held(definition, ballots), held(definition, dict(shuffled))
    assert one.payload == other.payload
    assert one.agreement == other.agreement


@EVERY_RULE
@settings(deadline=None, max_examples=30)
@given(election=elections(silos=5))
def test_a_ballot_that_abstains_throughout_changes_nothing(
    rule: RuleName, election: tuple[Votes, int]
) -> None:
    votes, classes = election
    definition = by(rule, votes.shape[1], classes)
    ballots = box(votes, definition.shape)
    silent = pack(np.full(votes.shape[1], ABSTAIN), definition.shape)
    with_it = held(definition, {**ballots, "silent": silent})
    assert with_it.payload == held(definition, ballots).payload
    assert with_it.agreement["silent"] == Agreement(0, 0)


@EVERY_RULE
@settings(deadline=None, max_examples=30)
@given(election=elections(), seed=st.integers(0, 2**32))
def test_renamed_classes_give_the_same_consensus_renamed(
    rule: RuleName, election: tuple[Votes, int], seed: int
) -> None:
    votes, classes = election
    definition = by(rule, votes.shape[1], classes)
    order = np.random.default_rng(seed).permutation(classes)
    renamed = np.append(order, ABSTAIN).astype(np.int32)
    before = held(definition, box(votes, definition.shape)).labels()
    with pytest.MonkeyPatch.context() as patch:
        # Ties fall by class: let them fall as they did before the renaming.
        patch.setattr(
            sys.modules[majority.__module__],
            "ranks",
            lambda seeds, index: ranks(seeds, int(np.argsort(order)[index])),
        )
        after = held(definition, box(renamed[votes], definition.shape)).labels()
    np.testing.assert_array_equal(renamed[before], after)


@EVERY_RULE
def test_blocks_do_not_matter(rule: RuleName, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(4)
    votes = random.integers(ABSTAIN, 4, (6, 403))
    votes[:4] = np.where(random.random((4, 403)) < 0.6, np.arange(403) % 4, votes[:4])
    definition = by(rule, 403, 4)
    ballots = box(votes, definition.shape)
    whole = held(definition, ballots)
    for module in (per_class_threshold, rules, staple, trimmed):
        monkeypatch.setattr(module, "ROW_BLOCK", 40)
    assert held(definition, ballots).payload == whole.payload


@EVERY_RULE
def test_what_silos_are_called_does_not_matter(rule: RuleName) -> None:
    random = np.random.default_rng(5)
    votes = random.integers(ABSTAIN, 3, (6, 200))
    definition = by(rule, 200, 3)
    # The weighted rule names two silos; these keep their names.
    renamed = [*silos(2), "zoe", "yves", "xenia", "walter"]
    ballots = box(votes, definition.shape)
    other = dict(zip(renamed, ballots.values(), strict=True))
    assert held(definition, other).payload == held(definition, ballots).payload


# -- what counts how much ----------------------------------------------------------------------------


def scored(labels: list[int], certainty: list[int]) -> bytes:
    shape = BallotShape(len(labels), 3, Encoding.SCORED)
    return pack_scored(np.array(labels), np.array(certainty), shape)


@pytest.mark.parametrize(
    ("rule", "labels"),
    [("majority", [0, 0]), ("qualified_majority", [0, 0]), ("certainty_weighted", [1, 0])],
)
def test_certainties_count_under_the_rule_that_asks_for_them_alone(
    rule: str, labels: list[int]
) -> None:
    ballots = {
        "north": scored([0, 0], [1, 9]),
        "south": scored([0, 0], [1, 0]),
        "west": scored([1, 1], [15, 8]),
    }
    consensus = {"min_share": 0.6} if rule == "qualified_majority" else {}
    definition = task(2, 3, rule, encoding="scored", consensus=consensus)
    assert held(definition, ballots).labels().tolist() == labels


def test_ballots_of_fedkt_weigh_their_students_and_noise_is_that_much_smaller() -> None:
    votes = np.array([[0] * 400] * 3 + [[1] * 400] * 2)
    right = []
    for partitions in (1, 8):
        definition = task(
            400,
            2,
            method="fedkt",
            fedkt={"level": "L1", "partitions": partitions},
            privacy={"party_gamma": 0.3},
        )
        outcome = held(definition, box(votes, definition.shape), bits=SeededBits(3))
        assert outcome.release is not None
        assert outcome.release.sensitivity == 2 * partitions
        right.append(np.mean(outcome.labels() == 0))
    assert right[1] - right[0] > 0.2


def test_behind_party_noise_a_declaration_moves_nothing_and_no_agreement_is_told() -> None:
    votes = np.array([[0] * 50, [1] * 50, [1] * 50])
    definition = task(50, 2, privacy={"party_gamma": 50.0})
    # By their declarations the two that vote 1 would count an eighth of the other.
    noisy = dict.fromkeys(["silo-01", "silo-02"], Declaration(one_if_voted=0.55, one_if_not=0.45))
    outcome = held(definition, box(votes, definition.shape), noisy, bits=SeededBits(1))
    assert outcome.labels().tolist() == [1] * 50
    assert outcome.agreement == {}
    plain = held(task(50, 2), box(votes, definition.shape), noisy)
    assert plain.labels().tolist() == [0] * 50
    assert plain.agreement["silo-00"].compared == 50


# -- agreement ---------------------------------------------------------------------------------------


@settings(deadline=None)
@given(elections(rows=80), st.sampled_from(Encoding))
def test_agreement_counts_rows_with_a_label_and_a_vote(
    election: tuple[Votes, int], encoding: Encoding
) -> None:
    votes, classes = election
    definition = task(
        votes.shape[1],
        classes,
        "qualified_majority",
        encoding=encoding,
        consensus={"min_share": 0.5},
    )
    outcome = held(definition, box(votes, definition.shape))
    published = outcome.labels()
    for name, mine in zip(silos(len(votes)), votes, strict=True):
        both = (published != ABSTAIN) & (mine != ABSTAIN)
        expected = Agreement(int(both.sum()), int((both & (mine == published)).sum()))
        assert outcome.agreement[name] == expected


@settings(deadline=None)
@given(
    rows=st.integers(1, 90),
    classes=st.integers(2, 6),
    density=st.floats(0, 1),
    seed=st.integers(0, 2**32),
)
def test_rows_of_a_noisy_pattern_are_compared_where_it_names_one_class(
    rows: int, classes: int, density: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    definition = task(rows, classes, encoding="one_hot")
    patterns = [random.random((rows, classes)) < density for _ in range(3)]
    ballots = {
        name: pack_one_hot(ones, definition.shape)
        for name, ones in zip(silos(3), patterns, strict=True)
    }
    outcome = held(definition, ballots)
    published = outcome.labels()
    for name, ones in zip(silos(3), patterns, strict=True):
        single = (ones.sum(axis=1) == 1) & (published != ABSTAIN)
        same = single & (ones.argmax(axis=1) == published)
        assert outcome.agreement[name] == Agreement(int(single.sum()), int(same.sum()))


@settings(deadline=None)
@given(elections(classes=4), st.integers(0, 2**32), st.sampled_from(Encoding))
def test_claims_are_compared_as_each_silo_sees_them(
    election: tuple[Votes, int], seed: int, encoding: Encoding
) -> None:
    votes, classes = election
    random = np.random.default_rng(seed)
    spaces = {
        name: [chr(ord("a") + index) for index in range(classes) if random.random() < 0.6] or ["a"]
        for name in silos(len(votes))
    }
    definition = task(
        votes.shape[1],
        classes,
        "per_class_threshold",
        method="cofed",
        label_spaces=spaces,
        encoding=encoding,
        rounds={"max_rounds": 1, "quorum": 1},
    )
    outcome = held(definition, box(votes, definition.shape))
    for name, mine in zip(silos(len(votes)), votes, strict=True):
        seen = outcome.labels(definition.label_space(name))
        both = (seen != ABSTAIN) & (mine != ABSTAIN)
        expected = Agreement(int(both.sum()), int((both & (mine == seen)).sum()))
        assert outcome.agreement[name] == expected


def test_a_broken_silo_is_seen() -> None:
    random = np.random.default_rng(0)
    truth = random.integers(0, 4, 1000)
    votes = [np.where(random.random(1000) < 0.9, truth, 0) for _ in range(4)]
    definition = task(1000, 4)
    outcome = held(definition, box([*votes, random.integers(0, 4, 1000)], definition.shape))
    shares = {name: one.same / one.compared for name, one in outcome.agreement.items()}
    assert shares.pop("silo-04") < 0.35
    assert min(shares.values()) > 0.85


# -- views -------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    rows=st.integers(1, 40),
    classes=st.integers(2, 6),
    density=st.floats(0, 1),
    seed=st.integers(0, 2**32),
)
def test_a_silo_sees_rows_that_exactly_one_class_it_knows_claims(
    rows: int, classes: int, density: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    shape = BallotShape(rows, classes, Encoding.ONE_HOT)
    claimed = random.random((rows, classes)) < density
    known = sorted(random.choice(classes, random.integers(1, classes + 1), replace=False).tolist())
    expected = []
    for row in claimed:
        mine = [index for index in known if row[index]]
        expected.append(mine[0] if len(mine) == 1 else ABSTAIN)
    published = pack_one_hot(claimed, shape)
    assert labels_for(published, shape, known).tolist() == expected
    planes = planes_for(published, shape, known)
    assert unpack(planes.tobytes(), shape).tolist() == expected


@pytest.mark.parametrize("known", [[0, 1, 2], [1], [0, 2]])
def test_of_one_label_a_row_a_silo_sees_those_it_knows(known: list[int]) -> None:
    shape = BallotShape(9, 3, Encoding.INDEX)
    labels = np.array([0, 1, 2, ABSTAIN, 2, 1, 0, 0, 1])
    expected = [label if label in known else ABSTAIN for label in labels.tolist()]
    assert labels_for(pack(labels, shape), shape, known).tolist() == expected


def test_agreement_of_rows_beyond_whole_words_is_counted() -> None:
    for rows in (1, 63, 64, 65, 130):
        assert agreement._rows(np.packbits(np.ones(rows, dtype=np.uint8))) == rows
