"""The private labeller: a bounded patient, exact sums, the noise that was charged, and a head that is paid once."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from seeded_bits import SeededBits

from silo_agent.trainer.models.protocol import Labelled
from silo_agent.trainer.privacy.labellers import logistic
from silo_agent.trainer.privacy.labellers.logistic import (
    CLIP,
    RATE,
    LogisticTrainer,
    calibrated_multiplier,
    clipped_sum,
    rows_of_same_patient,
)
from silo_agent.trainer.privacy.labellers.public_features import NORM, PublicFeatures
from silo_agent.trainer.privacy.mechanisms.private_labeller import PrivateLabeller, certainties
from silo_agent.trainer.privacy.mechanisms.protocol import Scope, SiloRound
from silo_agent.trainer.privacy.settings import PrivateLabellerSettings
from wire.ballot import BallotShape, Encoding
from wire.errors import ConfigurationError
from wire.privacy.accounting import epsilon
from wire.privacy.declaration import Unit
from wire.privacy.events import Gaussian

pytestmark = pytest.mark.slow

LIMIT = CLIP * NORM * (1 << 14)
"""L in grains of the gradient."""


class Memory:
    """`KeptFiles` in memory."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def get(self, name: str) -> bytes | None:
        return self.held.get(name)

    def put(self, name: str, content: bytes) -> None:
        self.held[name] = content


def scope(**changes: object) -> Scope:
    usual = Scope(BallotShape(60, 3, Encoding.SCORED), 4, 8.0, 1e-5, Unit.PATIENT, 150)
    return replace(usual, **changes)  # type: ignore[arg-type]


def three_clouds(count: int, seed: int) -> Labelled:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, size=count)
    corners = np.array([[3.0, 0.0], [-3.0, 1.0], [0.0, -4.0]])
    return Labelled(corners[labels] + generator.normal(size=(count, 2)), labels)


def silo(memory: Memory, patients: np.ndarray | None = None) -> SiloRound:
    private, public = three_clouds(150, 1), three_clouds(60, 2)

    def never(*_: object) -> object:
        raise AssertionError("a private labeller asks nothing of the silo's own learner")

    return SiloRound(
        private=private,
        patients=np.arange(150) if patients is None else patients,
        public=public.features,
        classes=3,
        round_number=1,
        relabel_without=never,
        build=never,
        kept=memory,
    )


@pytest.mark.parametrize("budget", [0.1, 1.0, 4.0, 50.0])
@pytest.mark.parametrize("steps", [1, 10])
def test_noise_keeps_the_budget_and_is_not_more_than_needed(budget: float, steps: int) -> None:
    multiplier = calibrated_multiplier(scope(epsilon=budget), steps)

    def cost(noise: float) -> float:
        return epsilon([Gaussian(sensitivity=1.0, scale=noise, count=steps)], 1e-5)

    assert cost(multiplier) <= budget < cost(multiplier * 0.998)


def test_a_training_charges_for_all_its_steps() -> None:
    trainer = LogisticTrainer.for_scope(PrivateLabellerSettings(steps=7), scope(epsilon=2.0))

    (event,) = trainer.events

    assert event == Gaussian(sensitivity=2 * CLIP, scale=2 * CLIP * trainer.multiplier, count=7)
    assert 1.99 < epsilon(trainer.events, 1e-5) <= 2.0


def test_more_patients_and_more_budget_are_worth_more_components() -> None:
    def components(**changes: object) -> int:
        return LogisticTrainer.for_scope(PrivateLabellerSettings(), scope(**changes)).components

    assert components(units=50, epsilon=0.5) == logistic.LEAST_COMPONENTS
    assert components(units=50, epsilon=0.5) < components(units=200) < components(units=10**4)
    assert components(units=10**6) == 64


@pytest.mark.parametrize("budget", [None, 1e-4])
def test_a_budget_that_leaves_the_noise_open_is_refused(budget: float | None) -> None:
    with pytest.raises(ConfigurationError) as refused:
        PrivateLabeller(PrivateLabellerSettings(), scope(epsilon=budget))

    assert "privacy.epsilon" in refused.value.hint


def grains(generator: np.random.Generator, rows: int, width: int) -> np.ndarray:
    directions = generator.normal(size=(rows, width))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    lengths = NORM * generator.choice([0.01, 0.5, 1.0], size=(rows, 1))
    return np.asarray(np.trunc(directions * lengths))


def test_no_patient_however_many_rows_moves_a_sum_by_more_than_twice_the_clip() -> None:
    generator = np.random.default_rng(5)
    largest = 0.0
    for _ in range(200):
        weights = generator.normal(size=(6, 3)) * generator.choice([0.0, 1.0, 1000.0])
        sums = []
        for _ in range(2):
            count = int(generator.choice([1, 2, 40]))
            rows = grains(generator, count, 6)
            labels = generator.integers(0, 3, size=count)
            shares = np.full(count, count, dtype=np.int64)
            sums.append(clipped_sum(rows, labels, shares, weights))
        assert all(np.sum(part.astype(object) ** 2) <= LIMIT**2 for part in sums)
        largest = max(largest, float(np.linalg.norm(sums[0] - sums[1])))
    assert largest <= 2 * LIMIT


def test_a_patient_can_move_a_sum_by_that_much() -> None:
    row = np.zeros((1, 4))
    row[0, 0] = NORM
    ones, zero = np.ones(1, dtype=np.int64), np.zeros((4, 2))

    change = clipped_sum(row, np.array([0]), ones, zero) - clipped_sum(
        row, np.array([1]), ones, zero
    )

    assert np.linalg.norm(change) == pytest.approx(2 * LIMIT, rel=1e-3)


def test_a_sum_is_exactly_that_of_each_patient_alone() -> None:
    generator = np.random.default_rng(6)
    public = generator.normal(size=(80, 30))
    features = PublicFeatures.fitted(public, 20)
    rows = generator.normal(size=(203, 30)) * 2
    labels = generator.integers(0, 7, size=203)
    patients = generator.integers(0, 90, size=203)
    weights = generator.normal(size=(features.width, 7)) * 5

    whole = clipped_sum(features.grains(rows), labels, rows_of_same_patient(patients), weights)
    parts = np.zeros_like(whole)
    for patient in np.unique(patients):
        mine = patients == patient
        shares = rows_of_same_patient(patients[mine])
        parts += clipped_sum(features.grains(rows[mine]), labels[mine], shares, weights)

    assert np.array_equal(whole, parts)


def test_scores_are_sums_of_integers_that_floats_hold_exactly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores: list[np.ndarray] = []
    softmax = logistic.softmax
    monkeypatch.setattr(
        logistic, "softmax", lambda given: (scores.append(given), softmax(given))[1]
    )
    generator = np.random.default_rng(8)
    rows, labels = grains(generator, 50, 9), generator.integers(0, 3, size=50)

    for size in (0.1, 1.0, 1e12):
        weights = generator.normal(size=(9, 3)) * size
        clipped_sum(rows, labels, np.ones(50, dtype=np.int64), weights)

    whole = [given * NORM * 2**20 for given in scores]
    assert all(np.array_equal(given, np.rint(given)) for given in whole)
    assert max(np.abs(given).max() for given in whole) < 2**53 / 64


def test_the_noise_in_the_weights_is_what_the_event_says() -> None:
    generator = np.random.default_rng(7)
    public = generator.normal(size=(100, 40))
    private = Labelled(generator.normal(size=(30, 40)), generator.integers(0, 10, size=30))
    trainer = LogisticTrainer(steps=1, multiplier=4.0, components=40, units=30)
    (event,) = trainer.events

    heads = [
        trainer.train(private, np.arange(30), public, 10, SeededBits(seed)) for seed in (1, 2, 3, 4)
    ]
    # What differs between two trainings with one step is nothing but noise.
    noise = np.concatenate(
        [
            (heads[0].weights - heads[1].weights).ravel(),
            (heads[2].weights - heads[3].weights).ravel(),
        ]
    ) / (RATE / 30)

    assert np.std(noise) / math.sqrt(2) == pytest.approx(event.scale, rel=0.08)
    assert heads[0].haze == pytest.approx(event.scale * RATE / 30)


def test_a_head_learns() -> None:
    held_out = three_clouds(500, 9)
    mechanism = PrivateLabeller(PrivateLabellerSettings(), scope())
    memory = Memory()
    mechanism.offer(silo(memory))

    vote = mechanism.vote(replace(silo(memory), public=held_out.features), SeededBits(3))

    assert vote.labels is not None
    assert np.mean(vote.labels == held_out.labels) > 0.9


def test_noise_that_is_known_to_be_there_is_not_taken_for_certainty() -> None:
    public, private = three_clouds(60, 2).features, three_clouds(6, 1)
    trainer = LogisticTrainer(steps=1, multiplier=20.0, components=2, units=6)

    head = trainer.train(private, np.arange(6), public, 3, SeededBits(1))
    bold = replace(head, haze=0.0)

    # Six patients and this noise: the weights are huge and mean nothing.
    assert certainties(bold.probabilities(public)).mean() > 10
    assert certainties(head.probabilities(public)).max() <= 1


def test_certainty_is_the_way_from_chance_to_one() -> None:
    chances = np.array([[0.25, 0.25, 0.25, 0.25], [0.625, 0.375, 0, 0], [1.0, 0, 0, 0]])

    assert certainties(chances).tolist() == [0, 8, 15]
    assert certainties(np.array([[0.34, 0.33, 0.33]])).tolist() == [1]
    assert certainties(np.ones((2, 1))).tolist() == [15, 15]


def test_an_offer_trains_nothing_and_says_what_the_head_will_cost() -> None:
    memory = Memory()
    mechanism = PrivateLabeller(PrivateLabellerSettings(), scope(epsilon=1.0))

    offer = mechanism.offer(silo(memory))

    assert set(memory.held) == {"labeller-basis"}
    (head,) = offer.once
    assert offer.events == ()
    assert 0.99 < epsilon(head.events, 1e-5) <= 1.0
    assert offer.declaration.epsilon == epsilon(head.events, 1e-5)
    assert offer.declaration.unit is Unit.PATIENT
    assert not offer.declaration.estimate
    assert offer.parameters["head"] == "logistic"


def test_every_round_votes_from_the_head_that_was_offered_first() -> None:
    memory = Memory()
    mechanism = PrivateLabeller(PrivateLabellerSettings(), scope())
    first = mechanism.offer(silo(memory))
    ballot = mechanism.vote(silo(memory), SeededBits(1))

    # As after a crash: another process, other randomness.
    again = PrivateLabeller(PrivateLabellerSettings(), scope())
    offer = again.offer(silo(memory))
    repeated = again.vote(silo(memory), SeededBits(2))

    assert again.paid_rounds == 4
    assert offer == first
    assert np.array_equal(repeated.labels, ballot.labels)
    assert np.array_equal(repeated.scores, ballot.scores)


def test_a_head_that_was_lost_is_paid_for_under_another_name() -> None:
    memory = Memory()
    mechanism = PrivateLabeller(PrivateLabellerSettings(), scope())
    (paid,) = mechanism.offer(silo(memory)).once
    mechanism.vote(silo(memory), SeededBits(1))
    del memory.held["labeller-head"]

    (again,) = mechanism.offer(silo(memory)).once
    assert again.basis != paid.basis


def test_a_head_costs_what_it_was_trained_with_whatever_silo_yaml_says_later() -> None:
    memory = Memory()
    dear = PrivateLabeller(PrivateLabellerSettings(), scope(epsilon=8.0))
    offered = dear.offer(silo(memory))
    dear.vote(silo(memory), SeededBits(1))

    cheap = PrivateLabeller(PrivateLabellerSettings(steps=3), scope(epsilon=0.5))

    assert cheap.offer(silo(memory)) == offered


def test_a_head_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "silo_agent.trainer.privacy.labellers.ebm", None)

    with pytest.raises(ConfigurationError) as refused:
        PrivateLabeller(PrivateLabellerSettings(head="ebm"), scope())

    assert "consilium[ebm]" in refused.value.hint
