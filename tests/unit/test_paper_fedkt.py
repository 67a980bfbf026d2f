"""FedKT's tables: same splits for all methods, the student sees public rows and consensus alone, ε from the books."""

from __future__ import annotations

import bz2
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from experiments.data import Dataset, Sizes, load
from experiments.papers import fedkt, fedkt_adult
from experiments.papers.fedkt import Cell, Method, Result, Setting
from silo_agent.trainer.models.catalogue import LearnerSpec
from silo_agent.trainer.models.protocol import Labelled

pytestmark = pytest.mark.slow

TREE = LearnerSpec(name="decision_tree")
SIZES = Sizes(silos=1, private=600, public=120, test=200)


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    draw = np.random.default_rng(5)
    rows = draw.normal(size=(1500, 4))
    return Dataset("plane", Labelled(rows, (rows[:, 0] + rows[:, 1] > 0).astype(np.int64)), 2)


def cell(method: Method, **other: object) -> Cell:
    plain = Cell(method, 4, 600, 120, 200, 25, None, 120, None, 0)
    return replace(plain, **other)  # type: ignore[arg-type]


def a_table(settings: tuple[Setting, ...]) -> fedkt.Table:
    return fedkt.Table(fedkt_adult.load, SIZES, TREE, settings, settings[0], 0.82)


class TestCells:
    def test_solo_and_pooled_are_measured_once_for_every_number_of_silos(self) -> None:
        settings = (Setting(4, Method.L0, 0.8, 0.7), Setting(4, Method.L1, 0.8, gamma=0.5))
        found = a_table(settings).cells(2, quick=False)
        assert [one.method for one in found if one.seed == 0] == ["solo", "central", "L0", "L1"]
        assert len(set(found)) == len(found) == 8

    def test_whoever_shares_a_number_of_silos_with_l2_has_its_splits(
        self, dataset: Dataset
    ) -> None:
        settings = (Setting(4, Method.L2, 0.8, budget=4.0), Setting(5, Method.L0, 0.8))
        found = a_table(settings).cells(1, quick=False)
        assert {one.method: one.fewest for one in found if one.silos == 4}["solo"] == 25
        assert {one.fewest for one in found if one.silos == 5} == {5}
        splits = [fedkt.split_rows(dataset, one) for one in found if one.silos == 4]
        assert all(
            np.array_equal(one.private[0].features, splits[0].private[0].features) for one in splits
        )

    def test_asks_the_share_of_the_public_rows_that_noise_pays_for(self) -> None:
        asked = {one.method: one.asked for one in fedkt_adult.TABLE.cells(1, quick=False)}
        assert asked["L1"] == 41
        assert asked["L2"] == 4070

    def test_a_quick_look_is_one_line_on_an_eighth_of_the_rows(self) -> None:
        found = fedkt_adult.TABLE.cells(3, quick=True)
        assert [(one.method, one.silos, one.seed) for one in found] == [
            ("solo", 10, 0),
            ("central", 10, 0),
            ("L0", 10, 0),
        ]
        assert {(one.private, one.public, one.test) for one in found} == {(3052, 508, 508)}


class TestCodRna:
    def test_is_both_published_parts_with_signs_for_labels(self, tmp_path: Path) -> None:
        place = tmp_path / "cod-rna"
        place.mkdir()
        (place / "cod-rna.bz2").write_bytes(bz2.compress(b"-1 1:-766 2:128 8:0.5\n1 1:-7\n"))
        (place / "cod-rna.t.bz2").write_bytes(bz2.compress(b"1 2:3\n"))
        dataset = load("cod-rna", tmp_path)
        assert dataset.rows.labels.tolist() == [0, 1, 1]
        assert dataset.rows.features[:, 0].tolist() == [-766, -7, 0]
        assert dataset.rows.features.shape == (3, 8)
        assert dataset.reserved == 0


class TestSplit:
    def test_every_teacher_has_a_row(self, dataset: Dataset) -> None:
        for seed in range(5):
            rows = fedkt.split_rows(dataset, cell(Method.L2, seed=seed))
            assert min(len(part) for part in rows.private) >= 25

    def test_adult_is_the_publishers_training_part(self, dataset: Dataset) -> None:
        kept = fedkt_adult.publishers_part(replace(dataset, reserved=300))
        assert len(kept.rows) == 1200
        assert kept.reserved == 0
        assert np.array_equal(kept.rows.features, dataset.rows.features[:1200])


class TestMethods:
    def test_the_student_learns_rows_with_a_consensus_only(self, dataset: Dataset) -> None:
        rows = fedkt.split_rows(dataset, cell(Method.L0))
        labels = np.where(np.arange(120) < 60, 1 - rows.public_labels, -1)
        student = fedkt.student(rows, labels, TREE, seed=1)
        assert np.array_equal(student.predict(rows.public[:60]), labels[:60])
        wrong = np.mean(student.predict(rows.test.features) != rows.test.labels)
        assert wrong > 0.8

    def test_l0_has_no_epsilon_and_learns(self, dataset: Dataset) -> None:
        found = fedkt.measure(cell(Method.L0), dataset, TREE)
        assert found.epsilon is None
        assert found.accuracy > 0.7
        assert found.answered is not None

    def test_l1_costs_what_the_coordinators_ledger_says(self, dataset: Dataset) -> None:
        found = fedkt.measure(cell(Method.L1, gamma=0.05, asked=10), dataset, TREE)
        # Ten rows, a silo moves two counts by one each: at δ = 0 that is 10 · 2 · 0.05.
        assert found.epsilon is not None
        assert 0.5 < found.epsilon <= 1.0

    def test_l2_spends_its_budget_and_no_more(self, dataset: Dataset) -> None:
        found = fedkt.measure(cell(Method.L2, budget=4.0), dataset, TREE)
        assert found.epsilon is not None
        assert 3.5 < found.epsilon <= 4.0

    def test_solo_and_pooled_bracket_what_can_be_learned(self, dataset: Dataset) -> None:
        solo = fedkt.measure(cell(Method.SOLO), dataset, TREE).accuracy
        pooled = fedkt.measure(cell(Method.CENTRAL), dataset, TREE).accuracy
        assert solo < pooled > 0.9


class TestLines:
    def test_a_lead_is_over_solo_of_the_same_seed(self) -> None:
        values = {
            (Method.SOLO, 0): 0.6,
            (Method.SOLO, 1): 0.7,
            (Method.L0, 0): 0.8,
            (Method.L0, 1): 0.75,
        }
        results = MappingProxyType(
            {
                cell(method, seed=seed): Result(value, None, None, None)
                for (method, seed), value in values.items()
            }
        )
        accuracy, lead = fedkt.lines([Setting(4, Method.L0, 0.83, 0.77)], results, 0.82)
        assert accuracy.ours == (0.8, 0.75)
        assert accuracy.least == 0.82
        assert lead.ours == pytest.approx((0.2, 0.05))
        assert (lead.least, lead.paper) == (0.10, 0.06)
        assert accuracy.beside.keys() == lead.beside.keys()
