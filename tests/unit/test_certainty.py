"""FEDAUX's certainties: a bounded patient, the noise that was charged, comparable scores, and a model paid for once."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit
from seeded_bits import SeededBits

from silo_agent.trainer.explain.costs import TaskFacts, costs_of
from silo_agent.trainer.explain.explain import explain
from silo_agent.trainer.methods.protocol import CannotServe
from silo_agent.trainer.methods.registry import method_for
from silo_agent.trainer.models.catalogue import LearnerSpec
from silo_agent.trainer.models.protocol import Features, Labelled
from silo_agent.trainer.planner.plan import Question
from silo_agent.trainer.privacy.certainty.model import (
    GRID,
    SLACK,
    CertaintyPlan,
    diameter,
    longest_weights,
    minimiser,
    papers_scale,
    shares,
)
from silo_agent.trainer.privacy.certainty.rows import PublicView, negatives
from silo_agent.trainer.privacy.certainty.scores import UNINFORMED, scores, shrunk
from silo_agent.trainer.privacy.certainty.worth import TELLING, CertaintyWorth
from silo_agent.trainer.privacy.ledger.ledger import Ledger
from silo_agent.trainer.privacy.ledger.release import Kind, Release
from silo_agent.trainer.privacy.ledger.report import examine
from silo_agent.trainer.privacy.settings import CertaintySettings, PrivacySettings
from silo_agent.trainer.release import PaidBallot
from silo_agent.trainer.session import Session, SessionInputs, TaskStorage, assemble
from silo_agent.trainer.settings import TrainingSettings
from silo_agent.trainer.task_folder import TaskFolder
from wire.ballot import ABSTAIN, unpack_scored
from wire.privacy.accounting import epsilon
from wire.privacy.declaration import Unit
from wire.privacy.events import Free, Gaussian, Unprotected
from wire.task.definition import TaskDefinition

pytestmark = pytest.mark.slow

ROWS, PATIENTS = 60, 40


# -- how far one patient can move the model -----------------------------------------------------------


def cut(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows / np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True)))


def moved(
    plan: CertaintyPlan, others: np.ndarray, public: np.ndarray, *patients: np.ndarray
) -> float:
    """Distance of the minimisers with one patient and with another, each with any number of rows."""
    found = []
    for rows in patients:
        own = np.concatenate([others, rows])
        numbers = np.concatenate([np.arange(len(others)), np.full(len(rows), len(others))])
        found.append(
            minimiser(
                own, shares(numbers), public, plan.regularisation, plan.units + plan.negatives
            )
        )
    return float(np.linalg.norm(found[0] - found[1]))


def a_plan(units: int, public_rows: int, regularisation: float, **noise: float) -> CertaintyPlan:
    return CertaintyPlan.calibrated(CertaintySettings(**noise), units, public_rows, regularisation)


@pytest.mark.parametrize("regularisation", [0.1, 1.0])
def test_the_worst_neighbours_a_search_finds_stay_within_the_sensitivity(
    regularisation: float,
) -> None:
    generator = np.random.default_rng(1)
    plan = a_plan(4, 3, regularisation)
    worst = 0.0
    for _ in range(8):
        fixed = [cut(generator.normal(size=(3, 2)) * 2) for _ in range(2)]

        def closer(flat: np.ndarray, fixed: list[np.ndarray] = fixed) -> float:
            first, second = cut(flat.reshape(2, 2))
            return -moved(plan, *fixed, first[np.newaxis], second[np.newaxis])

        start = generator.normal(size=4)
        found = minimize(closer, start, method="Nelder-Mead", options={"maxfev": 50})
        worst = max(worst, -float(found.fun))
    assert worst <= plan.sensitivity
    assert worst > 0.3 * plan.sensitivity, "a search that finds nothing shows nothing"


@pytest.mark.parametrize("regularisation", [0.01, 0.1, 10.0])
def test_neighbours_made_for_it_come_close_to_the_sensitivity(regularisation: float) -> None:
    """All others on one axis hold w as long as it can be; the two patients pull across it, from opposite sides."""
    plan = a_plan(3000, 3000, regularisation)
    length = longest_weights(regularisation)
    axis = np.array([[min(1.0, 1.2785 / length), 0.0]])
    worst = max(
        moved(
            plan,
            np.repeat(axis, plan.units - 1, axis=0),
            np.repeat(-axis, plan.negatives, axis=0),
            np.array([[-cosine, sine]]),
            np.array([[-cosine, -sine]]),
        )
        for cosine in (0.0, 0.2, 0.4, 0.5)
        for sine in [math.sqrt(1 - cosine**2)]
    )
    assert 0.95 * plan.sensitivity < worst <= plan.sensitivity


def test_many_rows_of_one_patient_move_no_more_than_one_row() -> None:
    generator = np.random.default_rng(2)
    others, public = cut(generator.normal(size=(5, 3))), cut(generator.normal(size=(5, 3)))
    plan = a_plan(6, 5, 0.1)
    edge = np.array([[1.0, 0.0, 0.0]])
    one = moved(plan, others, public, edge, -edge)
    many = moved(plan, others, public, np.repeat(edge, 50, axis=0), np.repeat(-edge, 30, axis=0))
    assert many == pytest.approx(one, rel=1e-3)
    assert many <= plan.sensitivity


@pytest.mark.parametrize("regularisation", [0.001, 0.05, 0.1, 2.0])
def test_no_two_pulls_are_further_apart_than_the_diameter(regularisation: float) -> None:
    generator = np.random.default_rng(3)
    length = longest_weights(regularisation) * generator.choice([0.3, 0.8, 1.0], size=20_000)
    points = [cut(generator.normal(size=(20_000, 2)) * 1.5) for _ in range(2)]
    pulls = [expit(-length * rows[:, 0])[:, np.newaxis] * rows for rows in points]
    widest = np.linalg.norm(pulls[0] - pulls[1], axis=1).max()
    assert 0.9 * diameter(regularisation) < widest <= diameter(regularisation) <= 2


def test_weights_are_never_longer_than_is_assumed() -> None:
    for pull in (0.2, 0.7662, 1.0):
        rows = np.array([[pull, 0.0]])
        found = minimiser(rows, np.ones(1), -rows, 0.1, 2)
        assert np.linalg.norm(found) <= longest_weights(0.1)
    assert np.linalg.norm(minimiser(rows * 0.7662, np.ones(1), -rows * 0.7662, 0.1, 2)) == (
        pytest.approx(longest_weights(0.1), rel=1e-3)
    )


def test_what_is_called_a_minimiser_has_hardly_a_gradient() -> None:
    generator = np.random.default_rng(4)
    own, public = cut(generator.normal(size=(300, 20))), cut(generator.normal(size=(200, 20)))
    patients = generator.integers(0, 90, size=300)
    total = len(np.unique(patients)) + 200
    weights = minimiser(own, shares(patients), public, 0.001, total)
    gradient = (
        0.001 * weights
        - (own.T @ (shares(patients) * expit(-own @ weights)) - public.T @ expit(public @ weights))
        / total
    )
    assert np.linalg.norm(gradient) <= SLACK / total
    assert shares(patients).sum() == pytest.approx(len(np.unique(patients)))


# -- the noise ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [0.1, 1.0, 10.0, 1e6])
def test_the_noise_costs_what_silo_yaml_allows_and_hardly_less(budget: float) -> None:
    plan = a_plan(94, 1000, 0.1, epsilon=budget)
    (event,) = plan.events
    assert event == Gaussian(sensitivity=plan.sensitivity, scale=plan.scale)
    assert 0.999 * budget < epsilon(plan.events, 1e-5) <= budget


def test_the_papers_noise_is_larger_than_needed_below_one_and_too_small_far_above() -> None:
    # √(8 ln(1.25e5)) / (0.1 · 0.1 · 1094), by hand.
    assert papers_scale(0.1, 1e-5, 0.1, 1094) == pytest.approx(0.8857, rel=1e-3)
    assert a_plan(94, 1000, 0.1, epsilon=0.1).scale == pytest.approx(0.3459, rel=1e-3)
    plan = a_plan(94, 1000, 0.1, epsilon=100.0)
    assert papers_scale(100.0, 1e-5, 0.1, 1094) < plan.scale


def test_the_noise_in_the_weights_is_what_the_event_says() -> None:
    generator = np.random.default_rng(5)
    own, public = cut(generator.normal(size=(30, 400))), cut(generator.normal(size=(20, 400)))
    plan = a_plan(30, 20, 0.1, epsilon=1.0)
    exact = minimiser(own, np.ones(30), public, 0.1, 50)
    released = [plan.train(own, np.arange(30), public, SeededBits(seed)) for seed in range(5)]
    noise = np.concatenate(released) - np.tile(exact, 5)
    assert np.std(noise) == pytest.approx(plan.scale, rel=0.06)
    assert abs(np.mean(noise)) < 4 * plan.scale / math.sqrt(len(noise))
    # On a grid that no private row can change, √400 grains of which are GRID of the sensitivity or less.
    grain = 2.0 ** math.floor(math.log2(GRID * plan.sensitivity / 20))
    assert all(np.array_equal(one / grain, np.rint(one / grain)) for one in released)


# -- rows and scores ----------------------------------------------------------------------------------


def test_negatives_are_drawn_from_the_public_set_and_nothing_else() -> None:
    drawn = negatives(1000, 0.2, "ab" * 32)
    assert len(np.unique(drawn)) == len(drawn) == 200
    assert np.array_equal(drawn, negatives(1000, 0.2, "ab" * 32))
    assert not np.array_equal(drawn, negatives(1000, 0.2, "cd" * 32))
    # Not the first ones, nor any other region.
    assert 400 < drawn.mean() < 600
    assert len(negatives(2, 0.9, "")) == 1
    assert len(negatives(30, 0.01, "")) == 1


def test_private_rows_far_outside_are_cut_and_change_no_other() -> None:
    generator = np.random.default_rng(6)
    public = generator.normal(size=(101, 4)) + 5
    view = PublicView.of(public)
    near = generator.normal(size=(10, 4)) + 5
    alone = view.rows(near)
    beside = view.rows(np.concatenate([near, [[1e30, -1e30, 1e30, np.nan]]]))
    assert np.allclose(beside[:10], alone, atol=1e-12)
    assert np.linalg.norm(beside, axis=1).max() <= 1 + 1e-12
    # Half of U is inside, so no odd row of it decides how small the others are.
    assert np.sum(np.linalg.norm(view.rows(public), axis=1) < 1 - 1e-12) == 50
    assert np.allclose(PublicView.of(np.ones((3, 2))).rows(np.ones((1, 2))), 0)


def test_weak_directions_of_u_count_for_more_and_none_is_chosen_by_a_sign() -> None:
    generator = np.random.default_rng(9)
    spreads = np.array([10.0, 1.0, 0.1])
    public = generator.normal(size=(500, 3)) * spreads
    turn, _ = np.linalg.qr(generator.normal(size=(3, 3)))
    seen = PublicView.of(public @ turn).rows(public @ turn)
    assert np.allclose(seen @ turn.T, PublicView.of(public).rows(public), atol=1e-9)
    # A spread of s becomes about s to the power 0.4; below the floor, a thousandth of the largest, they shrink.
    first, second, third = np.std(public @ PublicView.of(public).whitening, axis=0)
    assert first / second == pytest.approx(10**0.4, rel=0.1)
    assert second / third > 10**0.4


def test_a_score_is_a_power_of_the_odds_and_never_nothing() -> None:
    along = np.linspace(-1, 1, 201)[:, np.newaxis]
    assert set(scores(along, np.zeros(1), 0.1)) == {UNINFORMED}
    given = scores(along, np.array([0.5]), 0.1)
    assert np.all(np.diff(given.astype(int)) >= 0)
    assert (given.min(), given[100], given.max()) == (1, UNINFORMED, 15)
    # 4 · exp(8 · 0.5 · 0.25) = 10.87; with a λ that does not hold the odds down, 4 · exp(0.5 · 0.25) = 4.53.
    row = np.array([[0.25]])
    assert scores(row, np.array([0.5]), 0.1).tolist() == [11]
    assert scores(row, np.array([0.5]), 0.001).tolist() == [5]


def test_weights_that_noise_explains_are_taken_for_none() -> None:
    assert not shrunk(np.full(64, 0.9), 1.0, 99.0).any()
    assert shrunk(np.array([3.0, 4.0]), 1.0, 99.0) == pytest.approx(np.array([3, 4]) * (1 - 2 / 25))
    # Nobody's are longer than 1: whatever was drawn, at most 1 / (1 + 2) of it is worth keeping.
    assert shrunk(np.array([3.0, 4.0]), 1.0, 1.0) == pytest.approx(np.array([1, 4 / 3]))
    assert np.array_equal(shrunk(np.array([3.0, 4.0]), 0.0, 1.0), [3.0, 4.0])
    assert not shrunk(np.zeros(3), 0.0, 1.0).any()


def test_shrunk_weights_are_closer_to_the_true_ones() -> None:
    generator = np.random.default_rng(7)
    for length, better in ((0.5, 0.2), (4.0, 0.7), (40.0, 1.0)):
        true = generator.normal(size=64)
        true *= length / np.linalg.norm(true)
        noisy = true + generator.normal(size=(200, 64))
        errors = [np.linalg.norm(shrunk(one, 1.0, length) - true) for one in noisy]
        assert np.mean(errors) < better * np.mean(np.linalg.norm(noisy - true, axis=1))


# -- in a task ----------------------------------------------------------------------------------------


class AsTheyAre:
    """An extractor that changes nothing."""

    dimensions = 4

    def transform(self, rows: Features) -> Features:
        return np.asarray(rows, dtype=np.float32)


def clouds(count: int, seed: int) -> Labelled:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, size=count)
    return Labelled(generator.normal(size=(count, 4)) + 3 * labels[:, np.newaxis], labels)


PUBLIC = clouds(ROWS, 1).features


def a_task(**changes: Any) -> TaskDefinition:
    return TaskDefinition.model_validate(
        {
            "name": "fedaux",
            "public_set": "ab" * 32,
            "rows": ROWS,
            "labels": ["well", "ill"],
            "method": "fedaux",
            "extractor": "ef" * 32,
            "rounds": {"max_rounds": 3},
            **changes,
        }
    )


AGAINST = negatives(ROWS, 0.2, "ab" * 32)
Opening = Callable[..., Session]


@pytest.fixture
def opening(tmp_path: Path) -> Opening:
    """Opens a session as a restarted trainer would: everything that lasts is on the disk."""

    def opened(privacy: Any = "none", seed: int = 1, **changes: Any) -> Session:
        session = attempted(tmp_path, privacy, seed, **changes)
        assert isinstance(session, Session), session
        return session

    return opened


def attempted(
    home: Path, privacy: Any, seed: int = 1, private: Labelled | None = None, **changes: Any
) -> Session | str:
    section = {"mechanism": privacy} if isinstance(privacy, str) else privacy
    own = clouds(PATIENTS, 2) if private is None else private
    definition = a_task(**changes)
    folder = TaskFolder(home, definition.digest)
    inputs = SessionInputs(
        definition=definition,
        settings=TrainingSettings(
            model=LearnerSpec(name="decision_tree"), privacy=PrivacySettings.model_validate(section)
        ),
        private=own,
        public=PUBLIC,
        patients=np.arange(len(own)),
        unit=Unit.PATIENT,
        storage=TaskStorage(folder, the_ledger(home), SeededBits(seed)),
        extractor=AsTheyAre(),  # type: ignore[arg-type]
    )
    try:
        return assemble(inputs)
    except CannotServe as unfit:
        return unfit.sentence


def the_ledger(home: Path) -> Ledger:
    return Ledger(
        home / "ledger.db", home / "witness.json", lambda: datetime(2026, 3, 1, tzinfo=UTC)
    )


def releases(home: Path) -> tuple[Release, ...]:
    return the_ledger(home).releases()


def test_votes_carry_certainties_and_abstain_where_these_were_learned(opening: Opening) -> None:
    session = opening({"certainty": {"epsilon": 1000}})
    labels, certainties = unpack_scored(session.vote(1, None).data, session.shape)
    assert np.array_equal(np.flatnonzero(labels == ABSTAIN), AGAINST)
    rest = np.setdiff1d(np.arange(ROWS), AGAINST)
    expected = session.learner.training.fit(1, None, None).predict(PUBLIC)
    assert np.array_equal(labels[rest], expected[rest])
    assert certainties[rest].min() >= 1
    assert len(set(certainties[rest])) > 3


def test_a_silo_is_certain_of_rows_like_its_own(opening: Opening) -> None:
    """Its rows are those of one cloud: it speaks up there and is quiet in the other."""
    ill = clouds(PATIENTS, 2)
    ill = ill[ill.labels == 1]
    session = opening({"certainty": {"epsilon": 1000}}, private=ill)
    labels, certainties = unpack_scored(session.vote(1, None).data, session.shape)
    voted = labels != ABSTAIN
    sure = clouds(ROWS, 1).labels[voted] == 1
    assert certainties[voted][sure].mean() > 2 * certainties[voted][~sure].mean()


def test_without_a_mechanism_certainties_are_on_the_books_once_and_epsilon_stays_infinite(
    opening: Opening, tmp_path: Path
) -> None:
    for number in (1, 2, 3):
        paid = opening(seed=number).vote(number, None)
        assert math.isinf(paid.declaration.epsilon)
    first, *later = releases(tmp_path)
    plan = a_plan(PATIENTS, len(AGAINST), 0.1)
    assert first.events == (Unprotected(), *plan.events)
    assert first.pays_for == first.made_from != ()
    for release in later:
        assert release.events == (Unprotected(),)
        assert (release.made_from, release.pays_for) == (first.made_from, ())
    assert math.isinf(opening().releaser.spent())


def test_beside_a_labeller_both_are_paid_once_and_stay_within_the_budget(
    opening: Opening, tmp_path: Path
) -> None:
    privacy = {"mechanism": "private_labeller", "epsilon": 2, "certainty": {"epsilon": 0.5}}
    ballots: list[PaidBallot] = []
    for number in (1, 2, 3):
        session = opening(privacy, seed=number)
        ballots.append(session.vote(number, None))
    assert len({paid.data for paid in ballots}) == 1, "neither model is trained again"
    first, *later = releases(tmp_path)
    assert len(first.pays_for) == 2
    assert all(release.events == (Free(),) for release in later)
    spent = session.releaser.spent()
    assert 1.98 < spent <= 2
    assert ballots[0].declaration.epsilon == pytest.approx(spent)
    (head, certainty) = first.events
    assert epsilon((certainty,), 1e-5) == pytest.approx(0.5, rel=1e-3)
    assert epsilon((head,), 1e-5) < 2


def test_what_is_bought_anew_is_paid_anew_and_certainties_are_not(
    opening: Opening, tmp_path: Path
) -> None:
    teachers = {"name": "teacher_votes", "teachers": 3, "rows": 9, "paid_rounds": 2}
    privacy = {"mechanism": teachers, "epsilon": 30}
    for number in (1, 2, 3):
        opening(privacy, seed=number).vote(number, None)
    first, second, third = releases(tmp_path)
    assert first.events == (*second.events, *a_plan(PATIENTS, len(AGAINST), 0.1).events)
    assert second.pays_for == ()
    assert (third.kind, third.pays_for) == (Kind.REPETITION, ())
    assert 29.5 < opening(privacy).releaser.spent() <= 30


def test_a_ballot_repeated_for_nothing_pays_for_nothing(opening: Opening, tmp_path: Path) -> None:
    teachers = {"name": "teacher_votes", "teachers": 3, "rows": 9, "scale": 3.0, "paid_rounds": 1}
    bought, repeated = (opening({"mechanism": teachers}).vote(number, None) for number in (1, 2))
    assert bought == repeated
    paying, free = releases(tmp_path)
    assert (paying.kind, free.kind) == (Kind.BALLOT, Kind.REPETITION)
    assert paying.pays_for == paying.made_from == free.made_from
    assert free.pays_for == ()


def test_votes_whose_noise_is_not_gaussian_leave_room_too(opening: Opening) -> None:
    privacy = {"mechanism": "randomized_response", "epsilon": 40, "certainty": {"epsilon": 20}}
    session = opening(privacy, rounds={"max_rounds": 1, "quorum": 1})
    declared = session.vote(1, None).declaration
    assert 15 < session.releaser.spent() <= 40
    assert declared.epsilon == pytest.approx(session.releaser.spent())


def test_a_ballot_kept_and_overtaken_by_the_next_round_does_not_pay_twice(
    opening: Opening, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    session = opening()
    with monkeypatch.context() as dying:
        dying.setattr(Ledger, "spend", dies)
        with pytest.raises(KeyboardInterrupt):
            session.vote(1, None)
    assert releases(tmp_path) == ()
    opening().vote(2, None)
    overtaken = [opening(seed=seed).vote(1, None).data for seed in (5, 6)]
    assert overtaken[0] == overtaken[1]
    second, first = releases(tmp_path)
    assert (second.round, first.round) == (2, 1)
    assert second.made_from == first.made_from
    assert first.events == (Unprotected(),)


def test_a_model_that_was_lost_gets_another_name_and_is_paid_for_again(
    opening: Opening, tmp_path: Path
) -> None:
    opening().vote(1, None)
    (tmp_path / a_task().digest / "kept-certainty-model").unlink()
    opening().vote(2, None)
    first, second = releases(tmp_path)
    assert first.made_from != second.made_from
    assert first.events == second.events


def test_a_model_costs_what_it_was_trained_with_whatever_silo_yaml_says_later(
    opening: Opening, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    session = opening({"certainty": {"epsilon": 5}})
    with monkeypatch.context() as failing:
        failing.setattr(TaskFolder, "keep_ballot", full)
        with pytest.raises(OSError, match="no space"):
            session.vote(1, None)
    opening({"certainty": {"epsilon": 0.1}}).vote(1, None)
    (release,) = releases(tmp_path)
    assert epsilon(release.events[1:], 1e-5) == pytest.approx(5, rel=1e-3)
    assert release.parameters["certainty_epsilon"] == 5


def test_where_the_budget_is_gone_the_silo_abstains_and_trains_nothing(
    opening: Opening, tmp_path: Path
) -> None:
    privacy = {"mechanism": "private_labeller", "epsilon": 2, "lifetime_epsilon": 2}
    opening(privacy).vote(1, None)
    paid = opening(privacy, name="another").vote(1, None)
    labels, _ = unpack_scored(paid.data, a_task().shape)
    assert set(labels) == {ABSTAIN}
    assert "lifetime budget" in paid.abstained
    assert releases(tmp_path)[-1].kind is Kind.ABSTENTION
    assert not (tmp_path / a_task(name="another").digest / "kept-certainty-model").exists()


def test_slips_of_the_version_before_are_read(opening: Opening, tmp_path: Path) -> None:
    opening().vote(1, None)
    folder = TaskFolder(tmp_path, a_task().digest)
    kept = folder.kept_ballot(1)
    assert kept is not None
    slip = json.loads(kept[1])
    release = slip["release"]
    release["basis"] = release.pop("made_from")[0]
    del release["pays_for"], slip["anew"], slip["once"], slip["made_with"]
    before = opening().vote(1, None)
    place = tmp_path / a_task().digest
    (place / "ballot-000001.kept").unlink()
    (place / "ballot-000001.bin").write_bytes(kept[0])
    (place / "slip-000001.json").write_text(json.dumps(slip))
    assert opening().vote(1, None) == before
    assert len(releases(tmp_path)) == 1


@pytest.mark.parametrize(
    ("privacy", "changes", "sentence"),
    [
        ({"mechanism": "xor", "epsilon": 4}, {}, "xor flips bits of one_hot ballots"),
        (
            {"mechanism": "private_labeller", "epsilon": 0.1},
            {},
            "leaves nothing for votes once certainties have cost ε = 0.1",
        ),
        (
            "none",
            {"encoding": "index", "consensus": {"rule": "majority"}},
            "certainties travel in scored ballots and the task wants index",
        ),
    ],
)
def test_a_silo_that_cannot_serve_says_why(
    tmp_path: Path, privacy: Any, changes: dict[str, Any], sentence: str
) -> None:
    why = attempted(tmp_path, privacy, **changes)
    assert isinstance(why, str)
    assert sentence in why


# -- what people are told -----------------------------------------------------------------------------


def test_the_ledger_shows_the_noise_and_what_was_paid_for(opening: Opening, tmp_path: Path) -> None:
    privacy = {"mechanism": "private_labeller", "epsilon": 2}
    for number in (1, 2):
        opening(privacy).vote(number, None)
    settings = PrivacySettings.model_validate(privacy)
    report = examine(the_ledger(tmp_path).entries(), settings)
    first, second = (line.as_json() for line in report.rows)
    paid = first["pays_for"]
    assert isinstance(paid, list)
    assert [name.split("-")[0] for name in paid] == ["head", "certainty"]
    assert second["pays_for"] == []
    assert second["made_from"] == first["made_from"] == paid
    assert "certainty_noise" in report.rows[0].parameters
    assert "ε = 2 at" in report.sentences()[0] or "ε = 1.99" in report.sentences()[0]
    assert json.loads(str(report.rows[0].as_csv()["pays_for"])) == paid


def facts(**changes: Any) -> TaskFacts:
    definition = a_task(**changes)
    return TaskFacts(definition.shape, 3, "t", method_for(definition))


def test_what_a_task_costs_includes_its_certainties() -> None:
    own = PrivacySettings.model_validate(
        {"mechanism": {"name": "teacher_votes", "scale": 40.0}, "certainty": {"epsilon": 1}}
    )
    plain = replace(facts(), method=None)
    assert costs_of(own, "pid", facts()).epsilon > costs_of(own, "pid", plain).epsilon + 0.1  # type: ignore[operator]
    budget = PrivacySettings.model_validate({"mechanism": "private_labeller", "epsilon": 2})
    assert 1.9 < (costs_of(budget, "pid", facts()).epsilon or 0) <= 2
    starved = budget.model_copy(update={"certainty": CertaintySettings(epsilon=3)})
    assert "leaves nothing for votes" in costs_of(starved, "pid", facts()).misfit


def test_the_page_to_sign_speaks_of_certainties_where_a_task_may_have_them() -> None:
    settings = PrivacySettings.model_validate({"mechanism": "private_labeller", "epsilon": 2})

    def said(task: TaskFacts | None) -> str:
        costs = None if task is None else costs_of(settings, "pid", task)
        page = explain(settings, "pid", task, costs)
        return " ".join(text for section in page.sections for text in section.paragraphs)

    few = CertaintyWorth(settings.certainty, 1, 32).enough_units
    for text in (said(None), said(facts())):
        assert "ε = 0.1 at δ = 1e-05 for one exchange" in text
        assert "part of the task's budget" in text
        assert f"below {few} patients" in text
        assert "a number from 1 to 15" in text
    assert "FEDAUX" not in said(replace(facts(), method=None))


@pytest.mark.parametrize(("patients", "budget"), [(94, 0.1), (94, 1.0), (1000, 0.1), (1000, 10.0)])
def test_the_plan_says_what_noise_leaves_of_certainties_at_best(
    patients: int, budget: float
) -> None:
    """Measured where it is said to be best: all rows one point at the edge, U scattered around the centre."""
    worth = CertaintyWorth(CertaintySettings(epsilon=budget), patients, 32)
    generator = np.random.default_rng(8)
    public = cut(generator.normal(size=(200, 32)))
    public -= public.mean(axis=0)
    own = np.zeros((patients, 32))
    own[:, 0] = 1.0
    plan = a_plan(patients, 200, 0.1, epsilon=budget)
    exact = minimiser(own, np.ones(patients), public, 0.1, patients + 200)
    fresh = cut(generator.normal(size=(500, 32)))
    found = [
        np.corrcoef(fresh @ (exact + plan.scale * generator.normal(size=32)), fresh @ exact)[0, 1]
        for _ in range(200)
    ]
    error = 3 * float(np.std(found)) / math.sqrt(len(found))
    assert np.mean(found) <= worth.correlation + error
    assert np.mean(found) > 0.55 * worth.correlation - error, "the bound is not far off"
    assert worth.noise_only == (worth.correlation < TELLING) == (patients < worth.enough_units)
    assert ("and there are 94" in worth.sentence) == worth.noise_only
    enough = replace(worth, settings=CertaintySettings(epsilon=worth.enough_epsilon))
    assert enough.correlation == pytest.approx(TELLING, rel=1e-2)


def test_a_plan_for_small_silos_says_pure_noise() -> None:
    question = Question(1.0, 1e-5, 1, 1000, 10, 5, 94)
    assert "are pure noise below" in question.certainty.sentence
    assert question.certainty.as_json()["noise_only"]
    assert not replace(question, certainty_epsilon=2.0).certainty.noise_only
    assert replace(question, delta=0.0).certainty.settings.delta > 0
