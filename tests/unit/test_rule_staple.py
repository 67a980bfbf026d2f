"""STAPLE finds out who is reliable, reads the others rightly or not at all, and stays sound with little to go by."""

from __future__ import annotations

import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest
from consensus_scenes import box, elections, poll
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.consensus import form_consensus, majority
from coordinator.consensus import staple as module
from coordinator.consensus.staple import ITERATIONS, SPREAD, learn, staple
from wire.ballot import ABSTAIN

Votes = npt.NDArray[np.int32]


def experts(
    truth: npt.NDArray[np.int64], accuracies: list[float], classes: int, seed: int
) -> Votes:
    random = np.random.default_rng(seed)
    shape = len(accuracies), len(truth)
    other = (truth + random.integers(1, classes, shape)) % classes
    right = random.random(shape) < np.array(accuracies)[:, None]
    return np.where(right, truth, other).astype(np.int32)


def accuracy(votes: Votes, truth: npt.NDArray[np.int64], classes: int) -> float:
    return float(np.mean(staple(poll(votes, classes)) == truth))


def counted(votes: Votes, truth: npt.NDArray[np.int64], classes: int) -> float:
    polled = poll(votes, classes)
    return float(np.mean(form_consensus(polled.tally(), majority, polled.key) == truth))


def plain_em(
    votes: Votes, classes: int, iterations: int = ITERATIONS
) -> tuple[npt.NDArray[np.float64], list[npt.NDArray[np.float64]]]:
    """The estimate of docs/consensus/staple.md in loops and floats: posterior (rows, classes), confusions."""
    rows = votes.shape[1]
    truth = np.zeros((rows, classes))
    for at, column in enumerate(votes.T):
        counts = np.bincount(column[column != ABSTAIN], minlength=classes)
        if counts.any():
            truth[at] = (counts == counts.max()) / np.sum(counts == counts.max())
    voted = truth.any(axis=1)
    tables: list[npt.NDArray[np.float64]] = []
    for _ in range(iterations):
        prevalence = (truth.sum(axis=0) + 1) / (truth.sum() + classes)
        tables = []
        for mine in votes:
            cast = np.bincount(mine[mine != ABSTAIN], minlength=classes)
            usual = cast / max(1, cast.sum())
            table = np.zeros((classes, classes))
            for true in range(classes):
                prior = 5 * usual
                if cast[true]:
                    prior = 5 * (0.8 * np.eye(classes)[true] + 0.2 * usual)
                row = np.array([truth[mine == vote, true].sum() for vote in range(classes)]) + prior
                table[true] = 0.95 * row / max(row.sum(), 1e-300) + 0.05 / classes
            tables.append(table)
        for at, column in enumerate(votes.T):
            likely = np.log(prevalence)
            for table, vote in zip(tables, column, strict=True):
                if vote != ABSTAIN:
                    likely = likely + np.log(table[:, vote])
            shares = np.exp(likely - likely.max())
            truth[at] = voted[at] * shares / shares.sum()
    return truth, tables


@pytest.mark.parametrize(("classes", "seed"), [(2, 0), (3, 1), (4, 2)])
def test_it_is_the_documented_estimate(classes: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    truth = random.integers(0, classes, 60)
    votes = experts(truth, [0.9, 0.8, 0.7, 0.3], classes, seed)
    votes[random.random(votes.shape) < 0.1] = ABSTAIN
    posterior, confusions = plain_em(votes, classes)
    learned = learn(list(votes), classes)
    for silo, expected in enumerate(confusions):
        np.testing.assert_allclose(learned.confusion(silo), expected, atol=0.01)
    sure = posterior.max(axis=1) > 0.6
    labels = staple(poll(votes, classes))
    named = np.array([label in column for label, column in zip(labels, votes.T, strict=True)])
    assert named.all()
    likeliest = posterior.argmax(axis=1)
    voted_for = np.array([best in column for best, column in zip(likeliest, votes.T, strict=True)])
    assert np.count_nonzero(sure & voted_for) > 40
    np.testing.assert_array_equal(labels[sure & voted_for], likeliest[sure & voted_for])


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_each_turn_is_the_documented_one(iterations: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows, so that the prior counts; silos that know few classes, vote once, or never."""
    votes = np.full((6, 12), ABSTAIN, dtype=np.int32)
    votes[0] = [0, 0, 1, 1, 2, 2, 0, 1, 2, 0, 0, 1]
    votes[1] = [0, 1, 1, 1, 2, 0, 0, 1, 2, 0, 1, 1]
    votes[2] = [0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 0, 1]
    votes[3] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]
    votes[4, 3] = 1
    monkeypatch.setattr(module, "ITERATIONS", iterations)
    learned = learn(list(votes), 3)
    assert learned.iterations == iterations
    _, confusions = plain_em(votes, 3, iterations)
    for silo, expected in enumerate(confusions):
        # A grain is a relative 1/4096; a turn adds up as many of them as there are silos.
        np.testing.assert_allclose(learned.confusion(silo), expected, rtol=2e-3)
    before, _ = plain_em(votes, 3, iterations - 1)
    prevalence = (before.sum(axis=0) + 1) / (12 + 3)
    np.testing.assert_allclose(np.exp(learned.prevalence / module.GRAIN), prevalence, rtol=2e-3)


def test_without_any_ballot_all_classes_are_as_likely() -> None:
    assert np.ptp(learn([], 3).prevalence) == 0


def test_where_a_row_stands_does_not_matter() -> None:
    truth = np.random.default_rng(14).integers(0, 3, 30)
    votes = experts(truth, [0.95, 0.6, 0.55, 0.5], 3, 14)
    labels = staple(poll(votes, 3))
    posterior, _ = plain_em(votes, 3)
    clear = np.partition(posterior, -2)[:, -1] > np.partition(posterior, -2)[:, -2] + 0.01
    assert np.count_nonzero(clear) > 25
    for first in range(30):
        turned = np.roll(staple(poll(np.roll(votes, -first, axis=1), 3)), first)
        np.testing.assert_array_equal(turned[clear], labels[clear])


def test_confusions_are_found() -> None:
    random = np.random.default_rng(3)
    truth = random.integers(0, 3, 6000)
    votes = experts(truth, [0.9, 0.8, 0.7, 0.6, 0.85], 3, 3)
    # One silo takes every second c for an a.
    votes[4] = np.where((truth == 2) & (random.random(6000) < 0.5), 0, votes[4])
    learned = learn(list(votes), 3)
    for silo in range(5):
        for true in range(3):
            seen = np.bincount(votes[silo][truth == true], minlength=3) / np.sum(truth == true)
            bounded = (1 - SPREAD) * seen + SPREAD / 3
            np.testing.assert_allclose(learned.confusion(silo)[true], bounded, atol=0.03)
    np.testing.assert_allclose(np.exp(learned.prevalence / module.GRAIN).sum(), 1, atol=1e-3)
    assert learned.iterations < ITERATIONS


def test_the_word_of_one_good_silo_outweighs_many_guesses() -> None:
    truth = np.random.default_rng(4).integers(0, 2, 1500)
    votes = experts(truth, [0.95, 0.9, 0.6, 0.55, 0.55, 0.55, 0.55], 2, 4)
    assert accuracy(votes, truth, 2) > counted(votes, truth, 2) + 0.1


@pytest.mark.parametrize("classes", [2, 5])
def test_a_flipped_silo_is_read_the_other_way_round(classes: int) -> None:
    truth = np.random.default_rng(5).integers(0, classes, 2000)
    honest = experts(truth, [0.7, 0.75, 0.8, 0.7, 0.75], classes, 5)
    flipped = honest.copy()
    flipped[0] = (flipped[0] + 1) % classes
    assert accuracy(flipped, truth, classes) >= accuracy(honest, truth, classes) - 0.003
    assert counted(flipped, truth, classes) < counted(honest, truth, classes) - 0.03


def test_a_silo_that_always_says_the_same_says_nothing() -> None:
    truth = np.random.default_rng(6).integers(0, 3, 2000)
    honest = experts(truth, [0.7, 0.75, 0.8, 0.7], 3, 6)
    constant = np.vstack([honest, np.full((1, 2000), 1, dtype=np.int32)])
    np.testing.assert_allclose(accuracy(constant, truth, 3), accuracy(honest, truth, 3), atol=0.005)
    table = learn(list(constant), 3).tables[4]
    assert np.ptp(table[1]) < 0.02 * module.GRAIN


def test_a_class_most_silos_have_never_seen_survives_those_that_have() -> None:
    random = np.random.default_rng(7)
    truth = random.integers(0, 3, 900)
    votes = experts(truth, [0.9] * 6, 3, 7)
    # Four of six know only a and b, and see one of them in every c.
    votes[:4] = np.where(votes[:4] == 2, truth % 2, votes[:4])
    votes[:4] = np.where(truth == 2, random.integers(0, 2, (4, 900)), votes[:4])
    of_c = truth == 2
    polled = poll(votes, 3)
    by_count = form_consensus(polled.tally(), majority, polled.key)
    assert np.mean(by_count[of_c] == 2) < 0.4
    assert np.mean(staple(polled)[of_c] == 2) > 0.9


def test_two_silos_that_disagree_are_not_decided_for_one_of_them() -> None:
    random = np.random.default_rng(8)
    truth = random.integers(0, 2, 2000)
    votes = experts(truth, [0.8, 0.8], 2, 8)
    labels = staple(poll(votes, 2))
    differing = votes[0] != votes[1]
    assert 0.2 < np.mean(labels[differing] == votes[0][differing]) < 0.8


def test_rare_classes_are_not_swept_away_and_common_ones_are_expected() -> None:
    truth = (np.random.default_rng(9).random(2000) < 0.05).astype(np.int64)
    votes = experts(truth, [0.75, 0.85, 0.8, 0.9, 0.7], 2, 9)
    labels = staple(poll(votes, 2))
    assert np.mean(labels == truth) > counted(votes, truth, 2) + 0.02
    assert np.mean(labels[truth == 1] == 1) > 0.5


# -- little to go by ---------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(elections())
def test_a_label_is_one_that_somebody_voted_for_and_there_is_one_wherever_somebody_did(
    election: tuple[Votes, int],
) -> None:
    votes, classes = election
    labels = staple(poll(votes, classes))
    for label, column in zip(labels.tolist(), votes.T, strict=True):
        assert label in (set(column.tolist()) - {ABSTAIN} or {ABSTAIN})


@settings(deadline=None, max_examples=40)
@given(elections(), st.integers(0, 6))
def test_unanimous_rows_are_what_all_say_and_one_silo_alone_is_followed(
    election: tuple[Votes, int], pick: int
) -> None:
    votes, classes = election
    alone = votes[pick % len(votes)]
    np.testing.assert_array_equal(staple(poll(alone[None, :], classes)), alone)


def test_it_stops_where_another_turn_would_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = np.random.default_rng(10).integers(0, 3, 500)
    votes = list(experts(truth, [0.8, 0.7, 0.9], 3, 10))
    learned = learn(votes, 3)
    assert 2 < learned.iterations < ITERATIONS
    monkeypatch.setattr(module, "_settled", lambda before, after: False)
    further = learn(votes, 3)
    assert further.iterations == ITERATIONS
    for one, other in zip(learned.tables, further.tables, strict=True):
        assert np.abs(one - other).max() < 0.01 * module.GRAIN


def test_what_a_vote_can_say_is_bounded() -> None:
    truth = np.random.default_rng(11).integers(0, 4, 4000)
    learned = learn(list(experts(truth, [1.0, 1.0, 1.0], 4, 11)), 4)
    most = max(np.ptp(row) for table in learned.tables for row in table)
    assert most <= module.GRAIN * np.log((1 - SPREAD + SPREAD / 4) / (SPREAD / 4)) + 1


# -- many rows ---------------------------------------------------------------------------------------


def test_reliability_is_learned_from_a_sample_that_no_single_silo_can_foresee(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SAMPLE", 300)
    truth = np.random.default_rng(12).integers(0, 3, 3000)
    votes = experts(truth, [0.8, 0.85, 0.75, 0.8], 3, 12)
    votes[:, 100:200] = ABSTAIN
    drawn = []

    def listening(sampled: list[Votes], classes: int) -> module.Reliability:
        drawn.append(np.array(sampled))
        return learn(sampled, classes)

    monkeypatch.setattr(module, "learn", listening)
    labels = staple(poll(votes, 3))
    voted = truth[labels != ABSTAIN]
    assert np.mean(labels[labels != ABSTAIN] == voted) > 0.9
    assert np.count_nonzero(labels == ABSTAIN) == 100
    other = votes.copy()
    other[3, 5] = (other[3, 5] + 1) % 3
    staple(poll(other, 3))
    staple(poll(votes, 3))
    staple(poll(votes[::-1], 3))
    first, second, third, reversed_order = drawn
    np.testing.assert_array_equal(first, reversed_order[::-1])
    assert first.shape == (4, 300)
    assert (first != ABSTAIN).all()
    np.testing.assert_array_equal(first, third)
    # Another single vote anywhere, and silo 0 is judged by other rows.
    assert (first[0] != second[0]).any()


@pytest.mark.parametrize(
    ("bound", "value"), [("SAMPLE", 40), ("SAMPLE_CELLS", 120)], ids=["rows", "rows times classes"]
)
def test_as_many_rows_are_learned_from_as_the_bound_allows(
    bound: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned_from = []

    def listening(sampled: list[Votes], classes: int) -> module.Reliability:
        learned_from.append(len(sampled[0]))
        return learn(sampled, classes)

    monkeypatch.setattr(module, bound, value)
    monkeypatch.setattr(module, "learn", listening)
    for rows in (39, 40, 41, 200):
        truth = np.random.default_rng(15).integers(0, 3, rows)
        staple(poll(experts(truth, [0.8, 0.7, 0.9], 3, 15), 3))
    assert learned_from == [39, 40, 40, 40]


def test_memory_follows_rows_and_classes_not_silos() -> None:
    truth = np.random.default_rng(13).integers(0, 5, 60_000)

    def peak(silos: int) -> int:
        polled = poll(experts(truth, [0.8] * silos, 5, 13), 5)
        assert len(box([truth], polled.shape)) == 1
        tracemalloc.start()
        try:
            staple(polled)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    more = peak(24) - peak(4)
    # Twenty silos more: their votes on the sampled rows, four bytes each, and their tables.
    assert more < 20 * (module.SAMPLE * 4 + 4 * 6 * 5 * 20)
