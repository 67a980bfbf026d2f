"""An attack that knows everything but the noise cannot tell neighbours apart by more than is claimed.

Each world is run many times. On one half of the runs the attacker picks the best test, a threshold on the most
telling number; on the other half its two error rates are bounded (Clopper–Pearson, 99 % together), which gives an
ε that the mechanism has at least. Mechanisms that were broken on purpose show that the attack would find it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta
from seeded_bits import SeededBits

from silo_agent.trainer.models.protocol import Labelled
from silo_agent.trainer.privacy.certainty import model as certainty_model
from silo_agent.trainer.privacy.certainty.model import CertaintyPlan
from silo_agent.trainer.privacy.labellers import logistic
from silo_agent.trainer.privacy.labellers.logistic import LogisticTrainer
from silo_agent.trainer.privacy.labellers.public_features import PublicFeatures
from silo_agent.trainer.privacy.mechanisms.protocol import Scope, SiloRound
from silo_agent.trainer.privacy.mechanisms.teacher_votes import TeacherVotes
from silo_agent.trainer.privacy.settings import (
    CertaintySettings,
    PrivateLabellerSettings,
    TeacherVotesSettings,
)
from wire.ballot import BallotShape, Encoding
from wire.privacy.accounting import epsilon
from wire.privacy.declaration import Unit

pytestmark = pytest.mark.slow

DELTA = 1e-5
RUNS = 1500
"""Of each world."""


def least_epsilon(here: np.ndarray, there: np.ndarray) -> float:
    """An ε that no mechanism with these (runs, d) outputs stays below, at 99 % confidence; 0 if nothing shows."""
    half = len(here) // 2
    telling = here[:half].mean(axis=0) - there[:half].mean(axis=0)
    scores = [world @ telling for world in (here, there)]
    found = [
        _on_other_half(sign * scores[first], sign * scores[1 - first], half)
        for sign in (1, -1)
        for first in (0, 1)
    ]
    # The test with the best promise on the first half is the only one that counts: no picking afterwards.
    return max(found, key=lambda pair: pair[0])[1]


def _on_other_half(here: np.ndarray, there: np.ndarray, half: int) -> tuple[float, float]:
    """What the best threshold promises on the first half, and what it keeps on the second."""
    seen = np.concatenate([here[:half], there[:half]])
    thresholds = np.unique(np.quantile(seen, np.linspace(0, 1, 200), method="nearest"))
    promises = _lower_bounds(here[:half], there[:half], thresholds)
    best = int(np.argmax(promises))
    kept = _lower_bounds(here[half:], there[half:], thresholds[best : best + 1])
    return float(promises[best]), float(kept[0])


def _lower_bounds(here: np.ndarray, there: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    hits = np.sum(here >= thresholds[:, np.newaxis], axis=1)
    alarms = np.sum(there >= thresholds[:, np.newaxis], axis=1)
    least_hits = np.nan_to_num(beta.ppf(0.005, hits, len(here) - hits + 1), nan=0.0)
    most_alarms = np.nan_to_num(beta.ppf(0.995, alarms + 1, len(there) - alarms), nan=1.0)
    return np.asarray(np.log(np.maximum(least_hits - DELTA, most_alarms) / most_alarms))


def test_the_attack_itself_finds_what_gaussian_noise_really_costs() -> None:
    generator = np.random.default_rng(1)
    here, there = generator.normal(size=(2, 40_000, 1))

    # μ = 2: ε(1e-5) is 10.0 and no more than that is there; most of it shows with so many runs.
    assert 3.0 < least_epsilon(here + 2.0, there) < 10.0
    assert least_epsilon(here, there) < 0.1


# -- certainties ------------------------------------------------------------------------------------


def certainty_models(plan: CertaintyPlan, seed: int, *last: np.ndarray) -> np.ndarray:
    """(runs, weights): the model itself, of five patients and a sixth with these rows."""
    generator = np.random.default_rng(4)
    rows = generator.normal(size=(9, 2))
    near = rows / np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True))
    own = np.vstack([near[:5], *last])
    patients = np.append(np.arange(5), np.full(len(last), 5))
    return np.array(
        [plan.train(own, patients, near[5:], SeededBits(seed * RUNS + run)) for run in range(RUNS)]
    )


@pytest.mark.parametrize("budget", [1.0, 4.0])
def test_certainties_of_neighbours_cannot_be_told_apart(budget: float) -> None:
    # λ so large that the weights are moved by nearly all of what is allowed for.
    plan = CertaintyPlan.calibrated(CertaintySettings(epsilon=budget), 6, 4, 20.0)
    edge = np.array([[1.0, 0.0]])
    worlds = (edge,), (-edge,)

    def found(chosen: CertaintyPlan) -> float:
        here, there = (certainty_models(chosen, seed, *rows) for seed, rows in enumerate(worlds))
        return least_epsilon(here, there)

    assert found(plan) <= budget
    assert found(replace(plan, multiplier=plan.multiplier / 10)) > budget


def test_certainties_that_count_rows_and_not_patients_are_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = CertaintyPlan.calibrated(CertaintySettings(epsilon=1.0), 6, 4, 20.0)
    edge = np.array([[1.0, 0.0]])
    many = (edge,) * 20, (-edge,) * 20
    kept = least_epsilon(*(certainty_models(plan, seed, *rows) for seed, rows in enumerate(many)))
    assert kept <= 1.0
    monkeypatch.setattr(certainty_model, "shares", lambda patients: np.ones(len(patients)))
    broken = least_epsilon(*(certainty_models(plan, seed, *rows) for seed, rows in enumerate(many)))
    assert broken > 1.0


# -- private labeller -------------------------------------------------------------------------------

PUBLIC = np.random.default_rng(2).normal(size=(12, 2))
OUTLIER = np.array([[1e6, -1e6]])


def world(rows_of_last: int, label: int) -> tuple[Labelled, np.ndarray]:
    """Five patients near the origin and one far out, with any number of rows, all of one label."""
    near = np.random.default_rng(3).normal(size=(5, 2))
    features = np.vstack([near, np.repeat(OUTLIER, rows_of_last, axis=0)])
    labels = np.concatenate([[0, 1, 0, 1, 0], np.full(rows_of_last, label)])
    patients = np.concatenate([np.arange(5), np.full(rows_of_last, 5)])
    return Labelled(features, labels), patients


def heads(trainer: LogisticTrainer, rows_of_last: int, label: int, seed: int) -> np.ndarray:
    """(runs, weights): the head itself, which says more than any label made from it."""
    private, patients = world(rows_of_last, label)
    return np.array(
        [
            trainer.train(
                private, patients, PUBLIC, 2, SeededBits(seed * RUNS + run)
            ).weights.ravel()
            for run in range(RUNS)
        ]
    )


def trainer(budget: float, steps: int) -> LogisticTrainer:
    shape = BallotShape(12, 2, Encoding.SCORED)
    scope = Scope(shape, 3, budget, DELTA, Unit.PATIENT, 6)
    return LogisticTrainer.for_scope(PrivateLabellerSettings(steps=steps), scope)


@pytest.fixture(autouse=True)
def features_fitted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come from the same public rows in every run; fitting them anew is most of the time."""
    fitted = PublicFeatures.fitted(PUBLIC, 8)
    monkeypatch.setattr(PublicFeatures, "fitted", classmethod(lambda *_: fitted))


def overheard(
    monkeypatch: pytest.MonkeyPatch, chosen: LogisticTrainer, label: int, seed: int
) -> np.ndarray:
    """(runs, 1): how much likelier the noisy sums of all steps are in one world than in the other, up to a factor.

    The strongest attack there is, since every step's sum can be computed for both worlds from its weights.
    """
    likelier = 0.0
    between: list[np.ndarray] = []
    exact, noise = logistic.clipped_sum, logistic.gaussian

    def sums(rows: Any, labels: Any, shares: Any, weights: Any) -> Any:
        worlds = [exact(rows, np.append(labels[:-1], last), shares, weights) for last in (0, 1)]
        between[:] = worlds
        return worlds[label]

    def noisy(scale: float, size: Any, bits: Any) -> Any:
        nonlocal likelier
        drawn = noise(scale, size, bits)
        released = between[label] + drawn
        likelier += float(
            np.sum((2 * released - between[0] - between[1]) * (between[0] - between[1]))
        )
        return drawn

    found = []
    with monkeypatch.context() as patched:
        patched.setattr(logistic, "clipped_sum", sums)
        patched.setattr(logistic, "gaussian", noisy)
        private, patients = world(1, label)
        for run in range(RUNS):
            likelier = 0.0
            chosen.train(private, patients, PUBLIC, 2, SeededBits(seed * RUNS + run))
            found.append([likelier])
    return np.array(found)


def test_all_steps_overheard_say_no_more_than_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = trainer(2.0, 4)

    shown = least_epsilon(
        overheard(monkeypatch, chosen, 0, 1), overheard(monkeypatch, chosen, 1, 2)
    )

    assert 0.05 < shown <= epsilon(chosen.events, DELTA) <= 2.0


@pytest.mark.parametrize("rows_of_last", [1, 30])
def test_heads_of_neighbours_are_no_further_apart_than_claimed(rows_of_last: int) -> None:
    # With a single step the head is the noisy sum itself, and the outlier moves it by all of 2L.
    chosen = trainer(2.0, 1)

    shown = least_epsilon(heads(chosen, rows_of_last, 0, 1), heads(chosen, rows_of_last, 1, 2))

    assert 0.2 < shown <= epsilon(chosen.events, DELTA) <= 2.0


def test_a_head_with_a_twentieth_of_the_noise_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = trainer(2.0, 1)
    real = logistic.gaussian
    monkeypatch.setattr(
        logistic, "gaussian", lambda scale, size, bits: real(scale / 20, size, bits)
    )

    shown = least_epsilon(heads(chosen, 1, 0, 1), heads(chosen, 1, 1, 2))

    assert shown > epsilon(chosen.events, DELTA)


def test_a_head_that_clips_rows_instead_of_patients_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = trainer(2.0, 1)
    monkeypatch.setattr(logistic, "rows_of_same_patient", np.ones_like)

    shown = least_epsilon(heads(chosen, 30, 0, 1), heads(chosen, 30, 1, 2))

    assert shown > epsilon(chosen.events, DELTA)


# -- teacher votes ----------------------------------------------------------------------------------


class MostFrequent:
    """Says everywhere what most of its shard says: a single patient can turn all its answers."""

    def fit(self, rows: np.ndarray, labels: np.ndarray) -> None:
        self.label = int(np.bincount(labels).argmax())

    def predict(self, rows: np.ndarray) -> np.ndarray:
        return np.full(len(rows), self.label)


def ballots(
    mechanism: TeacherVotes, patients: np.ndarray, labels: np.ndarray, seed: int
) -> np.ndarray:
    """(runs, 2): how often each of two classes was answered; rows are alike, so nothing else is in a ballot."""

    def never(*_: object) -> Any:
        raise AssertionError

    side = SiloRound(
        private=Labelled(np.zeros((len(labels), 1)), labels),
        patients=patients,
        public=np.zeros((mechanism.plan.checks, 1)),
        classes=2,
        round_number=1,
        relabel_without=never,
        build=lambda seed: MostFrequent(),
        kept=never,  # type: ignore[arg-type]
    )
    votes = (mechanism.vote(side, SeededBits(seed * RUNS + run)).labels for run in range(RUNS))
    return np.array([[np.sum(labels == 0), np.sum(labels == 1)] for labels in votes])


def neighbours(rows_of_last: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Patients, and their labels in two worlds: one of four patients, with many rows, changes sides."""
    patients = np.concatenate([np.arange(3), np.full(rows_of_last, 3)])
    labels = np.concatenate([[0, 0, 1], np.full(rows_of_last, 1)])
    return patients, labels, np.where(patients == 3, 0, labels)


def votes_for(noise: Any, budget: float, rows: int = 30, units: int = 4) -> TeacherVotes:
    shape = BallotShape(3 * rows if noise == "confident" else rows, 2, Encoding.INDEX)
    scope = Scope(shape, 1, budget, DELTA, Unit.PATIENT, units)
    return TeacherVotes(TeacherVotesSettings(teachers=4, noise=noise, rows=rows), scope)


def shown_by_votes(
    mechanism: TeacherVotes,
    rows_of_last: int,
    deal: Callable[[np.ndarray], np.ndarray] | None = None,
) -> float:
    patients, labels, others = neighbours(rows_of_last)
    if deal is not None:
        patients = deal(patients)
    return least_epsilon(
        ballots(mechanism, patients, labels, 3), ballots(mechanism, patients, others, 4)
    )


@pytest.mark.parametrize("noise", ["gaussian", "laplace", "confident"])
def test_ballots_of_neighbours_are_no_further_apart_than_claimed(noise: Any) -> None:
    mechanism = votes_for(noise, 2.0)

    assert 0 < shown_by_votes(mechanism, 5) <= epsilon(mechanism.plan.events, DELTA) <= 2.0


def test_votes_with_a_twentieth_of_the_noise_are_found_out() -> None:
    mechanism = votes_for("gaussian", 2.0)
    claimed = epsilon(mechanism.plan.events, DELTA)
    mechanism.plan = replace(mechanism.plan, scale=mechanism.plan.scale / 20)

    assert shown_by_votes(mechanism, 5) > claimed


def test_votes_of_shards_that_share_a_patient_are_found_out() -> None:
    mechanism = votes_for("gaussian", 0.5, rows=200, units=12)
    mechanism.plan = replace(mechanism.plan, teachers=12)

    shown = shown_by_votes(mechanism, 9, deal=lambda patients: np.arange(len(patients)))

    assert shown > epsilon(mechanism.plan.events, DELTA)
