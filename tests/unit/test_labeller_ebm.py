"""DP-EBM: what interpret is given and what it costs; what it adds noise to is what is accounted for."""

from __future__ import annotations

import itertools
import math
import pickle
from typing import Any

import numpy as np
import pytest
from seeded_bits import SeededBits
from sklearn.datasets import load_breast_cancer

from silo_agent.trainer.models.protocol import Labelled
from silo_agent.trainer.privacy.mechanisms.protocol import Scope
from silo_agent.trainer.privacy.settings import PrivateLabellerSettings
from wire.ballot import BallotShape, Encoding
from wire.errors import ConfigurationError
from wire.privacy.accounting import epsilon
from wire.privacy.declaration import Unit
from wire.privacy.randomness import SecureBits

pytest.importorskip("interpret")
from interpret.privacy import DPExplainableBoostingClassifier
from interpret.utils._privacy import calc_gdp_noise_multi

from silo_agent.trainer.privacy.labellers import ebm
from silo_agent.trainer.privacy.labellers.ebm import EbmTrainer

pytestmark = pytest.mark.slow

DELTA = 1e-5


def trainer(budget: float | None, classes: int = 2, units: int = 300) -> EbmTrainer:
    shape = BallotShape(50, classes, Encoding.INDEX)
    scope = Scope(shape, 3, budget, DELTA, Unit.PATIENT, units)
    return EbmTrainer.for_scope(PrivateLabellerSettings(head="ebm"), scope)


def table(rows: int, classes: int, seed: int = 0) -> Labelled:
    """Three columns; the class can be read from the first."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(rows, 3))
    labels = np.clip(np.floor((features[:, 0] + 2) / 4 * classes), 0, classes - 1)
    return Labelled(features, labels.astype(np.int64))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Every fit of interpret: its arguments, rows, answers and the model."""
    fits: list[dict[str, Any]] = []
    real = DPExplainableBoostingClassifier.fit

    def fit(self: Any, rows: Any, answers: Any) -> Any:
        fits.append({"model": self, "rows": rows.copy(), "answers": answers.copy()})
        return real(self, rows, answers)

    monkeypatch.setattr(DPExplainableBoostingClassifier, "fit", fit)
    return fits


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("budget", [0.5, 4.0, 30.0])
def test_training_costs_the_budget_and_hardly_less(budget: float, classes: int) -> None:
    cost = epsilon(trainer(budget, classes).events, DELTA)
    assert 0.95 * budget < cost <= budget


def test_without_a_budget_or_with_one_class_it_refuses_in_a_sentence() -> None:
    with pytest.raises(ConfigurationError, match="sets none"):
        trainer(None)
    with pytest.raises(ConfigurationError, match="two classes"):
        trainer(1.0, classes=1)


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_a_replaced_patient_moves_a_step_by_what_is_accounted_for(classes: int) -> None:
    """Over all pairs of labels; per problem extreme predictions, in the same leaf and in two."""
    problems = [1] if classes == 2 else range(classes)
    worst = max(
        sum(largest_move(old == problem, new == problem) for problem in problems)
        for old, new in itertools.product(range(classes), repeat=2)
    )
    assert worst == ebm._step_square(classes)


def largest_move(answer: bool, other: bool) -> float:
    predictions = itertools.product((0.0, 0.5, 1.0), repeat=2)
    moves = [(before - answer, after - other) for before, after in predictions]
    return max(max((old - new) ** 2, old**2 + new**2) for old, new in moves)


def test_interpret_adds_noise_to_rate_times_gradient_sums_and_to_counts() -> None:
    """With next to no noise: the unit in which the events are counted is the one interpret has."""
    generator = np.random.default_rng(1)
    column = generator.uniform(size=(400, 1))
    answers = (generator.random(400) < 0.3).astype(np.int64)
    model = DPExplainableBoostingClassifier(
        feature_types=["continuous"],
        privacy_bounds=np.array([[0.0, 1.0]]),
        max_bins=4,
        max_rounds=1,
        learning_rate=1.0,
        n_jobs=1,
        epsilon=100.0,
        delta=0.4,
        bin_budget_frac=0.5,
    ).fit(column, answers)
    place = np.searchsorted(model.bins_[0][0], column[:, 0], side="right")
    counts = np.bincount(place, minlength=len(model.bin_weights_[0]) - 2)
    sums = np.bincount(place, weights=0.5 - answers, minlength=len(counts))
    weights = model.bin_weights_[0][1:-1]
    moved = -(model.term_scores_[0][1:-1] + model.intercept_[0]) * weights
    assert model.noise_scale_boosting_ < 0.2
    assert np.abs(weights - counts).max() < 20 * model.noise_scale_binning_
    assert np.abs(moved - sums).max() < 20 * model.noise_scale_boosting_
    assert np.abs(sums).max() > 10


@pytest.mark.parametrize(("histogram", "boosting"), [(1e-3, 3e-3), (0.07, 0.2), (2.8, 6.0)])
def test_interpret_derives_the_noise_that_was_meant(histogram: float, boosting: float) -> None:
    total, delta, share = ebm._as_interpret_counts(histogram, boosting)
    first = calc_gdp_noise_multi(7, total * share, delta / 2)
    second = calc_gdp_noise_multi(7, total - total * share, delta / 2)
    assert first == pytest.approx(math.sqrt(7) / histogram, rel=ebm._ROUNDING)
    assert second == pytest.approx(math.sqrt(7) / boosting, rel=ebm._ROUNDING)


def test_less_noise_than_asked_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = DPExplainableBoostingClassifier.fit

    def fit(self: Any, rows: Any, answers: Any) -> Any:
        real(self, rows, answers)
        self.noise_scale_boosting_ *= 0.99
        return self

    monkeypatch.setattr(DPExplainableBoostingClassifier, "fit", fit)
    data = table(60, 2)
    with pytest.raises(RuntimeError, match="less noise"):
        trainer(4.0).train(data, np.arange(60), data.features, 2, SeededBits(0))


def test_interpret_sees_one_row_per_patient_within_public_bounds(
    seen: list[dict[str, Any]],
) -> None:
    data, public = table(120, 2), table(80, 2, seed=9).features * 0.5
    patients = np.arange(120) % 30
    trainer(4.0, units=30).train(data, patients, public, 2, SeededBits(3))
    rows = seen[0]["rows"]
    lower, upper = public.min(axis=0), public.max(axis=0)
    assert len(rows) == 30 + 2
    for patient in range(30):
        own = np.clip(data.features[patients == patient], lower, upper)
        assert (own == rows[patient]).all(axis=1).any()
    assert np.array_equal(seen[0]["model"].privacy_bounds, np.column_stack([lower, upper]))
    assert seen[0]["model"].random_state is None
    assert np.array_equal(rows[-2:], np.tile(np.median(public, axis=0), (2, 1)))


def test_replacing_a_patient_replaces_one_row(seen: list[dict[str, Any]]) -> None:
    data, public = table(120, 2), table(80, 2, seed=9).features
    patients = np.arange(120) % 30
    other_features, other_labels = data.features.copy(), data.labels.copy()
    other_features[patients == 7] = 1e6
    other_labels[patients == 7] = 1
    for version in (data, Labelled(other_features, other_labels)):
        trainer(4.0, units=30).train(version, patients, public, 2, SeededBits(3))
    first, second = seen
    assert set(np.flatnonzero((first["rows"] != second["rows"]).any(axis=1))) == {7}
    assert set(np.flatnonzero(first["answers"] != second["answers"])) <= {7}


def test_absent_classes_are_problems_like_any_other(seen: list[dict[str, Any]]) -> None:
    data = table(90, 3)
    data = Labelled(data.features, np.minimum(data.labels, 1))
    head = trainer(8.0, classes=3, units=90).train(
        data, np.arange(90), data.features, 3, SecureBits()
    )
    assert [set(fit["answers"]) for fit in seen] == [{0, 1}] * 3
    assert seen[2]["answers"].sum() == 1
    likely = head.probabilities(data.features)
    assert likely.shape == (90, 3)
    assert np.allclose(likely.sum(axis=1), 1)
    assert (likely > 0).all()


def test_the_head_says_what_interpret_would(seen: list[dict[str, Any]]) -> None:
    data = table(200, 2)
    public = np.hstack([data.features, np.ones((200, 1))])
    private = Labelled(public, data.labels)
    head = trainer(8.0, units=200).train(private, np.arange(200), public, 2, SecureBits())
    assert seen[0]["rows"].shape[1] == 3
    expected = seen[0]["model"].predict_proba(data.features)
    assert np.allclose(head.probabilities(public), expected, atol=1e-6)
    again = pickle.loads(pickle.dumps(head))
    assert np.array_equal(again.probabilities(public), head.probabilities(public))


def test_no_seed_repeats_the_noise() -> None:
    data = table(100, 2)
    first, second = (
        trainer(4.0).train(data, np.arange(100), data.features, 2, SeededBits(5)) for _ in range(2)
    )
    assert not np.array_equal(
        first.probabilities(data.features), second.probabilities(data.features)
    )


def test_breast_cancer_is_learned_at_epsilon_4() -> None:
    features, labels = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    private, public, test = np.split(order, [300, 440])
    head = trainer(4.0, units=300).train(
        Labelled(features[private], labels[private]),
        np.arange(300),
        features[public],
        2,
        SecureBits(),
    )
    accuracy = (head.probabilities(features[test]).argmax(axis=1) == labels[test]).mean()
    assert accuracy > max(np.bincount(labels[test])) / len(test) + 0.1
