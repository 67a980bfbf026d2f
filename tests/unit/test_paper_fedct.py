"""The FedCT tables: who trains on what, for how many steps, and on which rows."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from experiments.data import Dataset, Sizes, Split, load, pooled, require_files, split_dataset
from experiments.papers import fedct_shift, fedct_table2, fedct_table3
from experiments.papers.cotraining import (
    TimedScores,
    central,
    cotrained,
    federated,
    local,
    timed_scores,
)
from experiments.papers.perceptrons import LEARNER, Method, Steps, train
from experiments.scores import score, train_alone
from silo_agent.trainer.models.catalogue import LearnerSpec
from silo_agent.trainer.models.protocol import Labelled
from wire.ballot import ABSTAIN
from wire.errors import ConfigurationError

pytestmark = pytest.mark.slow

TREE = LearnerSpec(name="decision_tree")


def two_clouds(count: int, seed: int = 0) -> Dataset:
    """Rows of two classes that overlap: few rows teach less than many."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 2, count)
    features = draw.normal(size=(count, 6)) + labels[:, None] * 0.8
    return Dataset("clouds", Labelled(features.astype(np.float32), labels.astype(np.int64)), 2)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in the harness's processes; more only wait for one another here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def rows() -> Split:
    return split_dataset(
        two_clouds(2000), Sizes(silos=3, private=20, public=300, test=1000), seed=0
    )


class TestDealing:
    def test_a_patient_is_in_one_place(self) -> None:
        draw = np.random.default_rng(1)
        patients = np.sort(draw.integers(0, 150, 400))
        numbers = np.arange(400)
        whole = Labelled(numbers[:, None].astype(float), numbers % 2)
        dataset = Dataset("visits", whole, 2, reserved=50, patients=patients)
        # The reserved rows begin with a patient.
        dataset = replace(dataset, patients=np.where(numbers < 350, patients, patients + 1000))
        rows = split_dataset(dataset, Sizes(silos=3, private=60, public=100, test=40), seed=2)
        assert rows.patients is not None
        places = [
            set(dataset.patients[part[:, 0].astype(int)])  # type: ignore[index]
            for part in (
                *(one.features for one in rows.private),
                rows.public,
                rows.test.features,
            )
        ]
        for number, place in enumerate(places):
            assert all(place.isdisjoint(other) for other in places[number + 1 :])
        for part, whose in zip(rows.private, rows.patients, strict=True):
            assert np.array_equal(whose, dataset.patients[part.features[:, 0].astype(int)])  # type: ignore[index]
            assert abs(len(part) - 60) < 20

    def test_each_half_has_its_own_concentration(self) -> None:
        numbers = np.arange(4000)
        dataset = Dataset("n", Labelled(numbers[:, None].astype(float), numbers % 10), 10)

        def spread(alpha: tuple[float, float]) -> float:
            rows = split_dataset(dataset, Sizes(10, 300, 500, 500, alpha), seed=3)
            assert sum(len(part) for part in rows.private) == 3000
            shares = [np.bincount(part.labels, minlength=10) / len(part) for part in rows.private]
            return float(np.mean([share.max() for share in shares]))

        even, half, none = spread((100.0, 100.0)), spread((100.0, 0.01)), spread((0.01, 0.01))
        assert even < 0.2 < half < none
        # Halves, not one of the two for all: every silo still knows every class.
        rows = split_dataset(dataset, Sizes(10, 300, 500, 500, (100.0, 0.01)), seed=3)
        assert all(len(np.unique(part.labels)) == 10 for part in rows.private)

    def test_rows_are_scaled_by_the_public_ones(self, rows: Split) -> None:
        scaled = rows.standardised()
        assert np.allclose(scaled.public.mean(axis=0), 0, atol=1e-5)
        assert np.allclose(scaled.public.std(axis=0), 1, atol=1e-5)
        mean, deviation = rows.public.mean(axis=0), rows.public.std(axis=0)
        part = rows.private[1].features
        assert np.allclose(scaled.private[1].features, (part - mean) / deviation, atol=1e-5)
        assert np.allclose(scaled.test.features, (rows.test.features - mean) / deviation, atol=1e-5)

    def test_fewer_public_rows_change_nobody_elses(self, rows: Split) -> None:
        fewer = rows.with_public(10)
        assert np.array_equal(fewer.public, rows.public[:10])
        assert np.array_equal(fewer.public_labels, rows.public_labels[:10])
        assert fewer.private is rows.private


class TestReading:
    def test_wine_is_red_or_white_and_repeats_are_left_out(self, tmp_path: Path) -> None:
        lines = "type,pH,quality\nred,3.1,5\nwhite,3.0,6\nred,3.1,5\n"
        self.put(tmp_path / "wine-quality" / "winequality.csv.gz", lines)
        found = load("wine", tmp_path).rows
        assert found.labels.tolist() == [1, 0]
        assert found.features.tolist() == [[3.1, 5.0], [3.0, 6.0]]

    def test_a_mushroom_has_a_column_per_category(self, tmp_path: Path) -> None:
        lines = "class,odor,stalk-root\np,f,?\ne,n,b\n"
        self.put(tmp_path / "mushroom" / "mushrooms.csv.gz", lines)
        found = load("mushroom", tmp_path).rows
        assert found.labels.tolist() == [1, 0]
        assert found.features.shape == (2, 4)
        assert (found.features.sum(axis=1) == 2).all()

    def test_covertype_classes_begin_with_zero(self, tmp_path: Path) -> None:
        (tmp_path / "covertype").mkdir()
        np.savez(tmp_path / "covertype" / "covtype.npz", X=np.eye(3, dtype=np.int16), y=[1, 7, 2])
        assert load("covertype", tmp_path).rows.labels.tolist() == [0, 6, 1]

    def test_x_rays_keep_patients_and_test_apart(self, tmp_path: Path) -> None:
        folder = tmp_path / "chest-xray-pneumonia"
        folder.mkdir()
        tiles = np.zeros((77, 77, 56, 56), dtype=np.uint8)
        tiles.reshape(-1, 56, 56)[:5] = np.array([10, 20, 30, 30, 50])[:, None, None]
        mosaic = tiles.swapaxes(1, 2).reshape(77 * 56, 77 * 56)
        Image.fromarray(mosaic).save(folder / "chest_xray_56x56_mosaic.png")
        self.put(
            folder / "meta.csv.gz",
            "index,file,label,subtype,patient,split,first_identical_index\n"
            "0,a,0,normal,person1,test,0\n"
            "1,b,1,virus,person1,train,1\n"
            "2,c,1,virus,person2,train,2\n"
            "3,d,1,virus,person3,train,2\n"
            "4,e,0,normal,person1,train,4\n",
        )
        found = load("chest-xray", tmp_path)
        assert (found.rows.features[:, 0, 0] * 255).round().tolist() == [20, 30, 50, 10]
        assert found.rows.features.shape == (4, 56, 56)
        assert found.rows.labels.tolist() == [1, 1, 0, 0]
        assert found.reserved == 1
        assert found.patients is not None
        first, second, third, test = found.patients.tolist()
        assert first == third
        assert len({first, second, test}) == 3

    def test_every_file_is_asked_for_before_a_run(self, tmp_path: Path) -> None:
        (tmp_path / "chest-xray-pneumonia").mkdir()
        (tmp_path / "chest-xray-pneumonia" / "chest_xray_56x56_mosaic.png").touch()
        with pytest.raises(ConfigurationError, match=r"meta\.csv\.gz is not there"):
            require_files("chest-xray", tmp_path)

    def put(self, path: Path, text: str) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()))


class TestCoTraining:
    def test_the_model_at_home_learns_from_all_of_the_consensus(self) -> None:
        # Two silos of three have their labels flipped: validation at home would leave their consensus out.
        rows = split_dataset(
            two_clouds(1000), Sizes(silos=3, private=120, public=200, test=300), seed=0
        )
        honest, *others = rows.private
        flipped = [Labelled(part.features, 1 - part.labels) for part in others]
        rows = replace(rows, private=(honest, *flipped))
        result = cotrained(rows, [TREE] * 3, seed=4, rounds={"max_rounds": 1})
        together = pooled((honest, Labelled(rows.public, result.labels())))
        expected = train_alone(rows, together, TREE, 4000).predict(rows.test.features)
        assert np.array_equal(result.home_models["silo-001"].predict(rows.test.features), expected)

    def test_silos_together_are_right_more_often_than_alone(self, rows: Split) -> None:
        apart = local(rows, [TREE] * 3, seed=0)
        together = federated(rows, [TREE] * 3, seed=0, rounds={"max_rounds": 2})
        everything = central(rows, TREE, seed=0)
        assert apart.accuracy < together.accuracy
        assert apart.worst < everything.accuracy
        assert together.answered == 1.0
        assert together.consensus is not None
        assert apart.consensus is None

    def test_trees_repeat_their_consensus(self, rows: Split) -> None:
        result = cotrained(rows, [TREE] * 3, seed=0, home_models=False, rounds={"max_rounds": 3})
        first, *later = [outcome.labels() for outcome in result.outcomes]
        assert all(np.array_equal(first, one) for one in later)
        assert result.home_models == {}

    def test_rows_of_no_class_are_not_scored(self, rows: Split) -> None:
        silent = replace(rows, public_labels=np.full(300, ABSTAIN, dtype=np.int64))
        model = train_alone(rows, rows.private[0], TREE, 0)
        labels = np.zeros(300, dtype=np.int64)
        labels[:30] = ABSTAIN
        unknown = score([model], silent, labels)
        assert (unknown.consensus, unknown.answered) == (None, 0.9)
        half = np.where(np.arange(300) < 165, 0, 1)
        known = score([model], replace(rows, public_labels=half), labels)
        assert known.consensus == 0.5


class TestPerceptrons:
    STEPS = Steps(total=24, period=6)

    def test_all_take_the_same_steps(self) -> None:
        rounds = self.STEPS.task["rounds"]["max_rounds"]
        # The model at home takes the last period.
        assert (rounds + 1) * self.STEPS.task["local_steps"] == 24
        assert self.STEPS.plan.rounds * self.STEPS.plan.steps == 24
        assert self.STEPS.plan.hidden == (512, 512)
        assert not self.STEPS.plan.standardise

    @pytest.mark.parametrize("method", Method)
    def test_every_method_learns(self, rows: Split, method: Method) -> None:
        found = train(method, rows, self.STEPS, seed=1)
        assert found.accuracy > 0.7
        assert found == train(method, rows, self.STEPS, seed=1)

    def test_a_student_learns_from_the_teachers_votes_alone(self, rows: Split) -> None:
        result = cotrained(
            rows, [LEARNER] * 3, seed=1, home_models=False, rounds={"max_rounds": 1}, local_steps=24
        )
        votes = Labelled(rows.public, result.labels())
        student = train_alone(rows, votes, LEARNER, 1000, 24)
        assert train(Method.PATE, rows, self.STEPS, seed=1) == timed_scores(
            [student], rows, votes.labels
        )

    def test_a_quorum_leaves_rows_without_a_label(self, rows: Split) -> None:
        # Three silos: nine tenths of the votes are all three.
        loose = train(Method.FEDCT, rows, self.STEPS, seed=1)
        strict = train(Method.FEDCT_QM, rows, self.STEPS, seed=1)
        assert loose.answered == 1.0
        assert strict.answered is not None
        assert strict.answered < 1.0
        assert strict.consensus is not None
        assert loose.consensus is not None
        assert strict.consensus > loose.consensus


class TestTables:
    def test_table3_judges_fedct_within_two_hundredths(self) -> None:
        cells = fedct_table3.cells(1, False)
        results = {
            cell: TimedScores(0.87 if cell.method == "fedct" else 0.5, 0.5, None, None)
            for cell in cells
            if cell.dataset == "breast-cancer"
        }
        found = fedct_table3.EXPERIMENT.table(results)
        assert {line.where: line.met for line in found} == {
            ("BreastCancer", "DT"): True,
            ("BreastCancer", "RuleFit"): False,
            ("BreastCancer", "XGBoost"): False,
            ("BreastCancer", "Random Forest"): False,
        }
        assert all(line.beside["local"] == (0.5,) for line in found)

    def test_table2_judges_the_quorum_where_classes_are_apart(self) -> None:
        results = {
            cell: TimedScores(0.74, 0.1, None, None) for cell in fedct_table2.cells(1, False)
        }
        judged = {
            line.where: line.least
            for line in fedct_table2.EXPERIMENT.table(results)
            if line.least is not None
        }
        assert judged == {
            ("α₁ = 100, α₂ = 2", "FedCT"): 0.7775,
            ("α₁ = 100, α₂ = 0.01", "FedCT"): 0.7705,
            ("α₁ = 0.01, α₂ = 0.01", "FedCT (QM)"): 0.73,
            ("α₁ = 0.01, α₂ = 0.01", "FEDAUX (ε = 1)"): 0.73,
        }

    def test_certainties_leave_out_the_rows_they_are_learned_from(self, rows: Split) -> None:
        found = train(Method.FEDAUX, rows, Steps(60, 20), 0)
        assert found.answered == pytest.approx(0.8)
        assert found.consensus is not None
        assert found.consensus > 0.6

    def test_a_shift_is_measured_against_iid_on_the_same_split(self) -> None:
        values = {"iid": (0.80, 0.84), "digits": (0.75, 0.77)}
        results = {
            fedct_shift.Cell(name, 1000, 100, seed): TimedScores(accuracy, 0.5, None, None)
            for name, accuracies in values.items()
            for seed, accuracy in enumerate(accuracies)
        }
        # A split whose iid run failed tells nothing of a loss.
        results[fedct_shift.Cell("digits", 1000, 100, 2)] = TimedScores(0.1, 0.1, None, None)
        found = {line.where[1]: line for line in fedct_shift.EXPERIMENT.table(results)}
        assert found["digits"].ours == pytest.approx((-0.05, -0.07))
        assert found["digits"].paper == -0.12
        assert found["digits"].met is True
        assert found["iid"].ours == (0.0, 0.0)

    def test_public_classes_follow_a_dirichlet_draw(self) -> None:
        labels = np.arange(40_000) % 10
        pool = Split(
            (), labels[:, None].astype(float), labels, Labelled(np.zeros((0, 1)), labels[:0]), 10
        )
        chosen = fedct_shift.by_class(pool, 0.5, np.random.default_rng(0))
        assert len(np.unique(chosen)) == fedct_shift.PUBLIC
        shares = np.bincount(labels[chosen], minlength=10) / fedct_shift.PUBLIC
        drawn = np.random.default_rng(0).dirichlet(np.full(10, 0.5))
        assert shares == pytest.approx(drawn, abs=0.001)
        # α so small that one class has it all, and too few rows of it.
        scarce = fedct_shift.by_class(pool, 1e-3, np.random.default_rng(0))
        assert len(np.unique(scarce)) == fedct_shift.PUBLIC
        assert np.bincount(labels[scarce]).max() == 4000

    def test_a_turned_image_has_its_pixels_elsewhere(self) -> None:
        image = np.zeros((1, 28, 28))
        image[0, 3, 20] = 1.0
        found = fedct_shift.rotated(image.reshape(1, -1)).reshape(28, 28)
        assert found[7, 3] == 1.0
        assert found.sum() == 1.0
