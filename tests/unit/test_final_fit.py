"""A silo's own model learns from as much of the consensus as serves its own patients."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from silo_agent.trainer.methods.co_training import CoTraining
from silo_agent.trainer.methods.final_fit import best_share, fit_at_home
from silo_agent.trainer.models.protocol import Labelled
from wire.ballot import ABSTAIN

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(5)
DIRECTION = RNG.normal(size=20)


def rows(count: int, seed: int) -> Labelled:
    features = np.random.default_rng(seed).normal(size=(count, 20))
    return Labelled(features, (features @ DIRECTION > 0).astype(np.int64))


PUBLIC = rows(600, seed=1)
FRESH = rows(2000, seed=2)
RUBBISH = np.random.default_rng(3).integers(0, 2, size=600)


def training(count: int = 120) -> CoTraining:
    return CoTraining(rows(count, seed=4), PUBLIC.features, lambda _: LogisticRegression(), 1, 7)


def right(consensus: np.ndarray, share: float | None = None, count: int = 120) -> float:
    model = fit_at_home(training(count), np.arange(count), 2, consensus, share)
    return float(np.mean(model.predict(FRESH.features) == FRESH.labels))


def test_a_good_consensus_is_taken_whole() -> None:
    assert best_share(training(), np.arange(120), 2, PUBLIC.labels) == 1.0
    assert right(PUBLIC.labels) == right(PUBLIC.labels, share=1.0) > right(PUBLIC.labels, share=0.0)


def test_rubbish_does_not_spoil_the_model_a_hospital_keeps() -> None:
    assert best_share(training(), np.arange(120), 2, RUBBISH) <= 0.1
    assert right(RUBBISH) > right(RUBBISH, share=1.0) + 0.1


def test_below_a_hundred_rows_nothing_can_be_told_and_the_whole_consensus_is_taken() -> None:
    assert best_share(training(99), np.arange(99), 2, RUBBISH) == 1.0
    assert best_share(training(100), np.arange(100), 2, RUBBISH) < 1.0


@pytest.mark.parametrize(
    ("whole_misses", "best_misses", "share"),
    [
        pytest.param(10, 6, 1.0, id="4 of 16 differing rows: one standard error"),
        pytest.param(10, 5, 0.3, id="5 of 15 differing rows: more than that"),
    ],
)
def test_the_whole_consensus_is_taken_while_it_is_within_a_standard_error_of_the_best(
    whole_misses: int, best_misses: int, share: float
) -> None:
    """Both miss rows of their own, so that what differs is their sum; the other shares miss everything."""
    missed = {600: range(whole_misses), 180: range(whole_misses, whole_misses + best_misses)}
    assert scripted_share(missed) == share


@pytest.mark.parametrize(("learned", "share"), [(600, 1.0), (180, 0.3), (60, 0.1), (0, 0.0)])
def test_the_share_that_alone_labels_rightly_is_found(learned: int, share: float) -> None:
    assert scripted_share({learned: range(0)}) == share


def scripted_share(missed: dict[int, range]) -> float:
    """The share chosen for a learner that misses these rows by how many public ones it learned from, else all."""

    class Scripted:
        def fit(self, X: np.ndarray, y: np.ndarray) -> Scripted:
            self.missed = missed.get(np.count_nonzero(X[:, 0] == 0), range(120))
            return self

        def predict(self, X: np.ndarray) -> np.ndarray:
            return np.isin(X[:, 0] - 1, list(self.missed)).astype(np.int64)

    numbered = Labelled(np.arange(1.0, 121.0)[:, None], np.zeros(120, dtype=np.int64))
    scripted = CoTraining(numbered, np.zeros((600, 1)), lambda _: Scripted(), 1, 7)
    return best_share(scripted, np.arange(120), 2, np.zeros(600, dtype=np.int64))


def test_one_patient_cannot_be_validated_and_the_whole_consensus_is_taken() -> None:
    assert best_share(training(), np.zeros(120, dtype=np.int64), 2, RUBBISH) == 1.0


def test_rows_of_a_patient_are_left_out_together() -> None:
    """One patient's copies on both sides of a fold would make D alone look better than it is."""
    seen = []

    class Watching(LogisticRegression):  # type: ignore[misc]
        def fit(self, X: np.ndarray, y: np.ndarray) -> Watching:
            seen.append({round(value, 9) for value in X[:, 0]})
            return super().fit(X, y)

        def predict(self, X: np.ndarray) -> np.ndarray:
            assert not seen[-1] & {round(value, 9) for value in X[:, 0]}
            return super().predict(X)

    single = rows(60, seed=8)
    doubled = Labelled(np.repeat(single.features, 2, axis=0), np.repeat(single.labels, 2))
    copies = CoTraining(doubled, PUBLIC.features, lambda _: Watching(), 1, 7)
    best_share(copies, np.repeat(np.arange(60), 2), 2, PUBLIC.labels)
    assert seen


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 1.0])
def test_a_share_is_a_share_of_the_rows_with_a_label(share: float) -> None:
    fitted = []

    class Counting(LogisticRegression):  # type: ignore[misc]
        def fit(self, X: np.ndarray, y: np.ndarray) -> Counting:
            fitted.append(len(X))
            return super().fit(X, y)

    counting = CoTraining(rows(120, seed=4), PUBLIC.features, lambda _: Counting(), 1, 7)
    fit_at_home(counting, np.arange(120), 2, PUBLIC.labels, share)
    assert fitted == [120 + round(share * 600)]


def test_without_any_consensus_a_silo_has_its_own_rows() -> None:
    nothing = np.full(600, ABSTAIN)
    assert right(nothing) == right(PUBLIC.labels, share=0.0)
