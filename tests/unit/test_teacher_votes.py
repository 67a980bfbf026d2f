"""Teacher votes: whole patients in shards, a plan the budget pays for, and noise that hides one teacher exactly."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr
from seeded_bits import SeededBits

from silo_agent.trainer.models.catalogue import LearnerSpec, build
from silo_agent.trainer.models.protocol import Labelled
from silo_agent.trainer.privacy.mechanisms.protocol import Scope, SiloRound
from silo_agent.trainer.privacy.mechanisms.teacher_plan import (
    TeacherPlan,
    calibrated_teachers,
    useful_scale,
    whole_task,
)
from silo_agent.trainer.privacy.mechanisms.teacher_votes import (
    GRAINS,
    TeacherVotes,
    answers,
    draw_shards,
    histogram,
)
from silo_agent.trainer.privacy.settings import TeacherVotesSettings
from wire.ballot import BallotShape, Encoding
from wire.errors import ConfigurationError
from wire.privacy.accounting import epsilon
from wire.privacy.declaration import Unit
from wire.privacy.events import Gaussian, Laplace

pytestmark = pytest.mark.slow

DELTA = 1e-5
QUIET = 1e-9
"""Noise that rounds to none."""


def scope(**changes: object) -> Scope:
    usual = Scope(BallotShape(500, 3, Encoding.INDEX), 4, 4.0, DELTA, Unit.PATIENT, 60)
    return replace(usual, **changes)  # type: ignore[arg-type]


def silo(
    private: Labelled,
    patients: np.ndarray,
    public: np.ndarray,
    make: Callable[[int], Any] | None = None,
) -> SiloRound:
    def never(*_: object) -> Any:
        raise AssertionError("teachers vote, not the silo's own learner")

    def tree(seed: int) -> Any:
        return build(LearnerSpec(name="decision_tree"), 3, (2,), seed)

    return SiloRound(
        private=private,
        patients=patients,
        public=public,
        classes=3,
        round_number=1,
        relabel_without=never,
        build=make or tree,
        kept=never,  # type: ignore[arg-type]
    )


def some_silo(make: Callable[[int], Any] | None = None) -> SiloRound:
    generator = np.random.default_rng(1)
    labels = generator.integers(0, 3, size=150)
    corners = np.array([[3.0, 0.0], [-3.0, 1.0], [0.0, -4.0]])
    private = Labelled(corners[labels] + generator.normal(size=(150, 2)), labels)
    patients = np.concatenate([np.arange(60), generator.integers(0, 60, size=90)])
    return silo(private, patients, generator.normal(size=(500, 2)) * 3, make)


# -- the plan ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["gaussian", "laplace", "confident"])
@pytest.mark.parametrize("rounds", [1, 3])
def test_a_plan_uses_the_budget_up_and_no_more(noise: Any, rounds: int) -> None:
    settings = TeacherVotesSettings(teachers=50, noise=noise, paid_rounds=rounds)

    plan = calibrated_teachers(settings, scope())

    cost = epsilon(whole_task(plan, rounds), DELTA)
    one_more = replace(plan, rows=plan.rows + 1, checks=plan.checks + 3 * (noise == "confident"))
    assert plan.rows > 1
    assert plan.scale <= useful_scale(settings)
    assert cost <= 4.0 < epsilon(whole_task(one_more, rounds), DELTA)


def test_gaussian_answers_cost_what_the_methods_say() -> None:
    # σ = √(2K)/μ with μ(ε=4) = 0.925 at δ = 1e-5.
    plan = calibrated_teachers(TeacherVotesSettings(teachers=50, rows=100), scope())

    assert plan.scale == pytest.approx(math.sqrt(200) / 0.925, rel=2e-3)


def test_no_more_rows_are_asked_than_there_are() -> None:
    plan = calibrated_teachers(
        TeacherVotesSettings(teachers=60, noise="confident"), scope(epsilon=500.0)
    )

    assert plan.rows == plan.checks == 500
    assert plan.scale < 0.2 * 60


def test_a_given_noise_decides_the_rows_and_given_rows_decide_the_noise() -> None:
    by_noise = calibrated_teachers(TeacherVotesSettings(teachers=50, scale=30.0), scope())
    by_rows = calibrated_teachers(TeacherVotesSettings(teachers=50, rows=by_noise.rows), scope())

    assert by_noise.scale == 30.0
    assert by_rows.scale == pytest.approx(30.0, rel=0.01)


def test_without_a_budget_the_noise_must_be_given() -> None:
    with pytest.raises(ConfigurationError, match="neither a budget nor a noise"):
        calibrated_teachers(TeacherVotesSettings(), scope(epsilon=None))

    plan = calibrated_teachers(TeacherVotesSettings(scale=3.0), scope(epsilon=None))
    assert (plan.scale, plan.rows) == (3.0, 500)


def test_what_cannot_be_useful_is_said_in_a_sentence() -> None:
    poor = TeacherVotes(TeacherVotesSettings(teachers=10), scope(epsilon=0.5))
    few = TeacherVotes(TeacherVotesSettings(teachers=100), scope())
    fine = TeacherVotes(TeacherVotesSettings(teachers=50), scope())

    assert "pays for no answer of 10 teachers" in poor.misfit()
    assert "There are 60 patients, too few for 100 teachers" in few.misfit()
    assert fine.misfit() == ""


def test_an_offer_charges_one_round_and_declares_the_task() -> None:
    mechanism = TeacherVotes(TeacherVotesSettings(teachers=50, paid_rounds=2), scope())

    offer = mechanism.offer(some_silo())

    assert mechanism.paid_rounds == 2
    assert epsilon(offer.events, DELTA) < 0.75 * offer.declaration.epsilon
    assert epsilon(offer.events * 2, DELTA) == offer.declaration.epsilon <= 4.0
    assert TeacherVotes(TeacherVotesSettings(paid_rounds=9), scope(rounds=4)).paid_rounds == 4


# -- shards and teachers ----------------------------------------------------------------------------


def test_patients_are_dealt_evenly_and_at_random() -> None:
    deals = np.array([draw_shards(10, 4, SeededBits(seed)) for seed in range(4000)])

    assert all(sorted(np.bincount(deal)) == [2, 2, 3, 3] for deal in deals)
    # Any two patients meet as often as any other two: 2·(3/10·2/9) + 2·(2/10·1/9).
    meet = [np.mean(deals[:, a] == deals[:, b]) for a, b in combinations(range(10), 2)]
    assert np.allclose(meet, 8 / 45, atol=5 * math.sqrt(8 / 45 / 4000))


def test_a_teacher_sees_its_own_shard_and_nothing_else() -> None:
    seen: dict[int, np.ndarray] = {}

    class Onlooker:
        def __init__(self, seed: int) -> None:
            self.seed = seed

        def advance(self, private: Labelled, pseudo: object, steps: int, seed: int) -> None:
            assert pseudo is None
            assert steps > 0
            seen[self.seed] = private.features[:, 0]

        def predict(self, rows: np.ndarray) -> np.ndarray:
            return np.zeros(len(rows), dtype=np.int64)

    patients = np.array([0, 1, 2, 0, 3, 4, 5, 4])
    private = Labelled(np.arange(8.0)[:, np.newaxis] * [1, 0], np.zeros(8, dtype=np.int64))
    shards = draw_shards(6, 3, SeededBits(2))

    histogram(
        silo(private, patients, np.zeros((4, 2)), Onlooker), shards[patients], 3, np.zeros((4, 2))
    )

    for teacher, rows in seen.items():
        assert sorted(rows) == sorted(np.flatnonzero(shards[patients] == teacher))


def test_replacing_a_patient_moves_one_vote_of_every_row_at_most() -> None:
    side = some_silo()
    shards = draw_shards(60, 12, SeededBits(3))
    before = histogram(side, shards[side.patients], 12, side.public)
    generator = np.random.default_rng(4)
    moved = 0
    for patient in range(10):
        others = side.patients != patient
        count = int(generator.integers(1, 9))
        private = Labelled(
            np.vstack([side.private.features[others], generator.normal(size=(count, 2)) * 100]),
            np.concatenate([side.private.labels[others], generator.integers(0, 3, size=count)]),
        )
        patients = np.concatenate([side.patients[others], np.full(count, patient)])
        after = histogram(silo(private, patients, side.public), shards[patients], 12, side.public)
        assert np.abs(after - before).sum(axis=1).max() <= 2
        assert np.abs(after.max(axis=1) - before.max(axis=1)).max() <= 1
        moved += int(np.abs(after - before).sum())
    assert moved > 0


@pytest.mark.parametrize("fault", ["untrainable", "out of range"])
def test_a_teacher_without_a_valid_vote_casts_none(fault: str) -> None:
    class Faulty:
        def __init__(self, seed: int) -> None:
            self.faulty = seed == 0

        def fit(self, rows: np.ndarray, labels: np.ndarray) -> None:
            if self.faulty and fault == "untrainable":
                raise ValueError("too few rows")

        def predict(self, rows: np.ndarray) -> np.ndarray:
            return np.full(len(rows), 7 if self.faulty else 1)

    side = some_silo(Faulty)

    counts = histogram(side, draw_shards(60, 5, SeededBits(1))[side.patients], 5, side.public[:2])

    assert counts.tolist() == [[0, 4, 0], [0, 4, 0]]


# -- votes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["gaussian", "laplace", "confident"])
def test_as_many_rows_are_answered_as_were_paid_for_and_the_others_abstain(noise: Any) -> None:
    mechanism = TeacherVotes(TeacherVotesSettings(teachers=20, noise=noise), scope(epsilon=8.0))

    vote = mechanism.vote(some_silo(), SeededBits(1))

    answered = int(np.sum(vote.labels != -1))
    assert vote.labels is not None
    assert vote.labels.shape == (500,)
    assert vote.scores is None
    assert 0 < answered <= mechanism.plan.rows
    assert answered == mechanism.plan.rows or noise == "confident"


def test_which_rows_are_asked_is_drawn_anew() -> None:
    mechanism = TeacherVotes(TeacherVotesSettings(teachers=20), scope(epsilon=8.0))

    first, second = (mechanism.vote(some_silo(), SeededBits(seed)).labels for seed in (1, 2))

    assert not np.array_equal(first == -1, second == -1)


def test_confident_answers_where_teachers_agree_and_stops_when_all_are_used() -> None:
    plan = TeacherPlan(
        "confident", 10, rows=3, checks=6, scale=QUIET, check_scale=QUIET, threshold=6.0
    )
    counts = np.array([[5, 5, 0], [1, 9, 0], [4, 3, 3], [0, 4, 6], [10, 0, 0], [0, 10, 0]])

    assert answers(counts, plan, SeededBits(1)).tolist() == [-1, 1, -1, 2, 0, -1]


def test_ties_are_drawn() -> None:
    plan = TeacherPlan("gaussian", 4, rows=6000, checks=6000, scale=QUIET)

    labels = answers(np.tile([2, 2, 0], (6000, 1)), plan, SeededBits(1))

    assert set(labels) == {0, 1}
    assert np.mean(labels) == pytest.approx(0.5, abs=0.035)


# -- proof by enumeration ---------------------------------------------------------------------------


def noise_chances(plan: TeacherPlan) -> tuple[np.ndarray, int]:
    """P(noise = k grains) for k = -reach..reach, exactly that of the rounded continuous law, and the reach."""
    scale = plan.scale * GRAINS
    reach = math.ceil(scale * (9 if plan.noise == "gaussian" else 30)) + GRAINS
    edges = (np.arange(-reach, reach + 2) - 0.5) / scale
    if plan.noise == "gaussian":
        # The tail nearer to zero on either side keeps its digits.
        upper = np.where(edges > 0, ndtr(-edges), 0.0)
        lower = np.where(edges > 0, 0.0, ndtr(edges))
    else:
        upper = np.where(edges > 0, np.exp(-np.abs(edges)) / 2, 0.0)
        lower = np.where(edges > 0, 0.0, np.exp(-np.abs(edges)) / 2)
    chances = np.where(edges[:-1] > 0, upper[:-1] - upper[1:], lower[1:] - lower[:-1])
    middle = reach
    chances[middle] = 1 - (lower[middle] + upper[middle + 1])
    return chances, reach


def excess(plan: TeacherPlan, bound: float) -> float:
    """δ of the noisy pair of counts, one of which loses a vote and the other gains one, at ε = `bound`.

    Σ over all pairs (k, l) of [P(k, l) − e^ε·P′(k, l)]₊, summed without approximation: the ratio is a product.
    """
    chances, _ = noise_chances(plan)
    here, there = chances[GRAINS:], chances[:-GRAINS]
    with np.errstate(divide="ignore"):
        loss = np.log(here) - np.log(there)
    usable = np.isfinite(loss)
    here, there, loss = here[usable], there[usable], loss[usable]
    order = np.argsort(loss)
    ordered = loss[order]
    tail_here = np.append(np.cumsum(here[order][::-1])[::-1], 0.0)
    tail_there = np.append(np.cumsum(there[order][::-1])[::-1], 0.0)
    start = np.searchsorted(ordered, bound - loss, side="right")
    return float(np.sum(here * tail_here[start] - math.exp(bound) * there * tail_there[start]))


@pytest.mark.parametrize("scale", [1.5, 4.0])
def test_gaussian_counts_cost_exactly_what_is_charged(scale: float) -> None:
    plan = TeacherPlan("gaussian", 5, rows=1, checks=1, scale=scale)
    for delta in (1e-3, 1e-5):
        claimed = epsilon(plan.events, delta)

        assert excess(plan, claimed) <= delta
        assert excess(plan, claimed) == pytest.approx(delta, rel=0.01)
        assert excess(plan, claimed * 0.99) > delta


def test_laplace_counts_cost_exactly_what_is_charged() -> None:
    plan = TeacherPlan("laplace", 5, rows=1, checks=1, scale=1.5)
    (event,) = plan.events
    assert isinstance(event, Laplace)
    chances, reach = noise_chances(plan)
    central = slice(reach - 20_000, reach + 20_000)
    loss = np.abs(np.log(chances[central]) - np.log(np.roll(chances, GRAINS)[central])).max()

    # Two counts move, so the worst pair costs twice the worst single one.
    assert 2 * loss <= event.sensitivity / event.scale * (1 + 1e-9)
    assert 2 * loss == pytest.approx(event.sensitivity / event.scale, rel=0.01)


def winner_chances(counts: tuple[int, int, int], plan: TeacherPlan) -> np.ndarray:
    """P(each of three classes is answered), ties drawn, by summing over every value of the largest total."""
    chances, reach = noise_chances(plan)
    span = 2 * reach + 1 + max(counts) * GRAINS
    exactly = np.zeros((3, span))
    for place, count in zip(exactly, counts, strict=True):
        place[count * GRAINS : count * GRAINS + len(chances)] = chances
    below = np.cumsum(exactly, axis=1) - exactly
    results = []
    for one in range(3):
        two, three = (other for other in range(3) if other != one)
        wins = below[two] * below[three]
        wins += (exactly[two] * below[three] + below[two] * exactly[three]) / 2
        wins += exactly[two] * exactly[three] / 3
        results.append(float(np.sum(exactly[one] * wins)))
    return np.array(results)


@pytest.mark.parametrize(
    ("noise", "scale"), [("gaussian", 2.0), ("gaussian", 0.7), ("laplace", 1.0)]
)
def test_no_answer_tells_neighbours_apart_by_more_than_is_charged(noise: Any, scale: float) -> None:
    plan = TeacherPlan(noise, 4, rows=1, checks=1, scale=scale)
    claims = [(epsilon(plan.events, delta), delta) for delta in (1e-2, 1e-5)]
    if noise == "laplace":
        claims.append((2 / scale, 0.0))
    histograms = [(a, b, 4 - a - b) for a in range(5) for b in range(5 - a)]
    chances = {counts: winner_chances(counts, plan) for counts in histograms}
    events = list(chain.from_iterable(combinations(range(3), size) for size in (1, 2)))
    for here, there in ((a, b) for a in histograms for b in histograms):
        if sum(abs(x - y) for x, y in zip(here, there, strict=True)) != 2:
            continue
        for classes in events:
            left, right = (chances[counts][list(classes)].sum() for counts in (here, there))
            assert all(left <= math.exp(bound) * right + delta + 1e-12 for bound, delta in claims)


@pytest.mark.parametrize(("noise", "scale"), [("gaussian", 2.0), ("laplace", 1.0)])
def test_answers_are_drawn_with_the_enumerated_chances(noise: Any, scale: float) -> None:
    draws = 20_000
    plan = TeacherPlan(noise, 4, rows=draws, checks=draws, scale=scale)

    labels = answers(np.tile([3, 1, 0], (draws, 1)), plan, SeededBits(5))

    expected = winner_chances((3, 1, 0), plan)
    assert expected.sum() == pytest.approx(1.0)
    spread = np.sqrt(expected * (1 - expected) / draws)
    assert np.all(np.abs(np.bincount(labels, minlength=3) / draws - expected) < 4.5 * spread)


def test_a_confident_plan_charges_every_check_and_every_answer() -> None:
    plan = TeacherPlan("confident", 5, rows=2, checks=7, scale=4.0, check_scale=6.0, threshold=3.0)

    assert plan.events == (
        Gaussian(sensitivity=1.0, scale=6.0, count=7),
        Gaussian(sensitivity=math.sqrt(2), scale=4.0, count=2),
    )
    assert TeacherPlan("gaussian", 5, rows=0, checks=0, scale=4.0).events == ()
