"""Cross-fitting: no row is labelled by a learner that has seen the row's pseudo-label."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.cross_fit import Cell, Result, measure, page
from experiments.federation import define_task
from silo_agent.trainer.methods.co_training import CoTraining
from silo_agent.trainer.methods.cross_fitting import FoldLearners, fit_fold_learners, folds_of
from silo_agent.trainer.methods.fedct import FedCT
from silo_agent.trainer.methods.local_learner import LocalLearner
from silo_agent.trainer.models.catalogue import LearnerSpec, build
from silo_agent.trainer.models.protocol import Labelled
from silo_agent.trainer.task_folder import TaskFolder
from wire.task.definition import TaskDefinition

pytestmark = pytest.mark.slow

ROWS = 30
PRIVATE = Labelled(-1 - np.arange(6.0)[:, None], np.array([0, 1, 0, 1, 0, 1]))
PUBLIC = np.arange(float(ROWS))[:, None]
CONSENSUS = np.tile([0, 1, -1], ROWS // 3)


class Refitted:
    """Knows which rows it was fitted on; does not label a public row it has a label of."""

    fits: list[set[float]]

    def __init__(self, fits: list[set[float]]) -> None:
        self.fits = fits
        self.seen: set[float] = set()

    def fit(self, rows: np.ndarray, labels: np.ndarray) -> None:
        self.seen = set(rows[:, 0].tolist())
        self.fits.append(self.seen)

    def predict(self, rows: np.ndarray) -> np.ndarray:
        assert not self.seen & set(rows[:, 0].tolist())
        return rows[:, 0].astype(np.int64) % 2


class Continuing:
    """The same, over all rounds."""

    def __init__(self) -> None:
        self.seen: set[float] = set()
        self.advances = 0

    def advance(self, private: Labelled, pseudo: Labelled | None, steps: int, seed: int) -> None:
        self.advances += 1
        if pseudo is not None:
            self.seen |= set(pseudo.features[:, 0].tolist())

    def predict(self, rows: np.ndarray) -> np.ndarray:
        assert not self.seen & set(rows[:, 0].tolist())
        return np.full(len(rows), self.advances % 2)


def co_training(make: Callable[[int], Any]) -> CoTraining:
    return CoTraining(PRIVATE, PUBLIC, make, 1, 3)


def a_task(cross_fit: int) -> TaskDefinition:
    return define_task(PUBLIC, 2, ["a", "b"], cross_fit=cross_fit)


@dataclass(frozen=True)
class Silo:
    """FedCT with its learner at one silo."""

    method: FedCT
    learner: LocalLearner

    def labels(self, round_number: int, consensus: np.ndarray | None) -> np.ndarray:
        return self.method.label_public(self.learner, round_number, consensus)

    def labels_without(
        self, unit: int, round_number: int, consensus: np.ndarray | None
    ) -> np.ndarray:
        return self.method.label_public(self.learner.without(unit), round_number, consensus)

    def final_learner(self, round_number: int, consensus: np.ndarray) -> Any:
        return self.method.final_learner(self.learner, round_number, consensus)


def learning(folder: Path, make: Callable[[int], Any], cross_fit: int = 3, silo: str = "a") -> Silo:
    definition = a_task(cross_fit)
    kept = TaskFolder(folder, definition.digest)
    return Silo(FedCT(definition, silo), LocalLearner(co_training(make), np.arange(6), kept))


# -- folds ------------------------------------------------------------------------------------------


def test_folds_are_even_fixed_and_every_silos_own(tmp_path: Path) -> None:
    folds = folds_of(ROWS, 4, "here")

    assert sorted(np.bincount(folds)) == [7, 7, 8, 8]
    assert np.array_equal(folds, folds_of(ROWS, 4, "here"))
    assert not np.array_equal(folds, folds_of(ROWS, 4, "there"))
    alike = np.mean([np.mean(folds == folds_of(ROWS, 4, str(text))) for text in range(300)])
    assert alike == pytest.approx(0.25, abs=0.03)

    def own(silo: str) -> list[set[float]]:
        fits: list[set[float]] = []
        learning(tmp_path / silo, lambda _: Refitted(fits), 2, silo).labels(2, CONSENSUS)
        return fits

    assert own("a") != own("b")


# -- learners that are fitted anew ------------------------------------------------------------------


def test_every_row_is_labelled_by_one_that_has_not_seen_its_label(tmp_path: Path) -> None:
    fits: list[set[float]] = []
    silo = learning(tmp_path, lambda _: Refitted(fits))

    labels = silo.labels(2, CONSENSUS)

    assert labels.tolist() == [row % 2 for row in range(ROWS)]
    own, agreed = set(PRIVATE.features[:, 0]), set(np.flatnonzero(CONSENSUS != -1).astype(float))
    assert len(fits) == 3
    assert all(own < seen < own | agreed for seen in fits)
    # Each label of P is kept from exactly one of the three.
    assert all(sum(row in seen for seen in fits) == 2 for row in agreed)


def test_before_there_is_a_consensus_one_fit_is_enough(tmp_path: Path) -> None:
    fits: list[set[float]] = []

    learning(tmp_path, lambda _: Refitted(fits)).labels(1, None)

    assert fits == [set(PRIVATE.features[:, 0])]


def test_more_folds_than_rows_leave_some_empty() -> None:
    fits: list[set[float]] = []
    training = replace(co_training(lambda _: Refitted(fits)), public=PUBLIC[:2])
    folds = folds_of(2, 5, "")

    learned = fit_fold_learners(training, 2, CONSENSUS[:2], None, folds, 5)

    assert learned.predict(PUBLIC[:2], folds).tolist() == [0, 1]


def test_an_estimate_of_the_sensitivity_leaves_the_patient_out_of_every_fold(
    tmp_path: Path,
) -> None:
    fits: list[set[float]] = []

    learning(tmp_path, lambda _: Refitted(fits)).labels_without(2, 2, CONSENSUS)

    assert len(fits) == 3
    assert all(-3.0 not in seen and -2.0 in seen for seen in fits)


# -- learners that continue -------------------------------------------------------------------------


def test_a_network_never_meets_the_labels_of_its_fold_and_the_one_at_home_meets_all(
    tmp_path: Path,
) -> None:
    silo = learning(tmp_path, lambda _: Continuing())
    said = [silo.labels(1, None)]
    for number in (2, 3, 4):
        said.append(silo.labels(number, np.roll(CONSENSUS, number)))

    # Every one has taken its steps in every round, since it was one with the others in the first.
    assert [set(labels) for labels in said] == [{1}, {0}, {1}, {0}]
    state = TaskFolder(tmp_path, silo.method.definition.digest).learner(4)
    assert isinstance(state, FoldLearners)
    assert [part.advances for part in state.parts] == [4, 4, 4]  # type: ignore[union-attr]
    assert all(len(part.seen) == 20 for part in state.parts)  # type: ignore[union-attr]
    home = silo.final_learner(5, CONSENSUS)
    assert isinstance(home, Continuing)
    assert (home.advances, len(home.seen)) == (5, ROWS)


def test_a_killed_trainer_does_not_train_twice(tmp_path: Path) -> None:
    class Exhausted(Continuing):
        def advance(self, *_: Any) -> None:
            raise AssertionError("this was learned before")

    first = learning(tmp_path, lambda _: Continuing())
    first.labels(1, None)
    said = first.labels(2, CONSENSUS)
    again = learning(tmp_path, lambda _: Exhausted())
    assert np.array_equal(again.labels(2, CONSENSUS), said)

    home = first.final_learner(3, CONSENSUS)
    again = learning(tmp_path, lambda _: Exhausted())
    assert vars(again.final_learner(3, CONSENSUS)) == vars(home)


def test_networks_go_on_after_a_restart_as_if_there_had_been_none(tmp_path: Path) -> None:
    network = LearnerSpec(name="torch_mlp", parameters={"hidden": [4]})

    def make(seed: int) -> Any:
        return build(network, 2, (1,), seed)

    there = learning(tmp_path / "there", make, 2)
    for number, consensus in (
        (1, None),
        (2, CONSENSUS),
        (3, np.roll(CONSENSUS, 1)),
    ):
        restarted = learning(tmp_path / "here", make, 2)
        one, other = (silo.labels(number, consensus) for silo in (there, restarted))
        assert np.array_equal(one, other)


# -- what it is for ---------------------------------------------------------------------------------


def test_trees_freeze_without_it_and_go_on_learning_with_it() -> None:
    plain, crossed = (measure(Cell("digits", 0.5, "decision_tree", k, seed=0)) for k in (1, 2))

    assert plain.round_1 == plain.round_2 == plain.round_3 == plain.round_4
    assert crossed.round_4 > crossed.round_1 + 0.03


def test_the_page_has_a_line_for_every_setting() -> None:
    results = {
        Cell("digits", None, "decision_tree", k, seed): measured
        for k in (1, 2)
        for seed, measured in enumerate([_result(0.5), _result(0.7)])
    }

    lines = page(results).splitlines()

    assert len(lines) == 4
    assert lines[2].split(" | ")[:5] == ["| digits", "even", "decision_tree", "1", "0.600"]
    assert lines[2].endswith("+0.100 ± 0.000 |")


def _result(first: float) -> Result:
    return Result(first, first, first, first + 0.1)
