"""The four hospitals: gaps in the data, who sees what, and models tried on everybody's patients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.data.hearts import (
    HOSPITALS,
    KINDS,
    NUMBERS,
    YES_NO,
    HospitalData,
    encoded,
    load_hospitals,
    medians,
)
from experiments.papers import hearts
from experiments.papers.hearts import Cell, Method, split
from silo_agent.trainer.models.protocol import Features, Labelled, Labels

pytestmark = pytest.mark.slow

COLUMNS = ["hospital", *NUMBERS, *YES_NO, *KINDS, "slope", "ca", "thal", "num"]


def patient(hospital: str, draw: np.random.Generator, **other: object) -> dict[str, object]:
    sick = int(draw.integers(0, 2))
    plain = {
        "hospital": hospital,
        "age": 50 + draw.normal(),
        "trestbps": 130.0,
        "chol": 240.0,
        "thalach": 150 - 40 * sick + 10 * draw.normal(),
        "oldpeak": 2 * sick + 0.5 * draw.normal(),
        "sex": 1.0,
        "fbs": 0.0,
        "exang": float(sick),
        "cp": 1 + 3 * sick,
        "restecg": 0,
        "slope": np.nan,
        "ca": np.nan,
        "thal": np.nan,
        "num": 2 * sick,
    }
    return {**plain, **other}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    people = [patient(name, draw) for name in HOSPITALS for _ in range(40)]
    people += [patient("va", draw, chol=0.0, trestbps=0.0, exang=np.nan, cp=np.nan, num=4)]
    place = tmp_path / "heart-disease"
    place.mkdir()
    frame = pd.DataFrame(people, columns=COLUMNS)
    frame.to_csv(place / "heart_disease_4hospitals.csv.gz", index=False)
    return tmp_path


class TestWards:
    def test_a_zero_that_nobody_can_have_is_an_empty_cell(self, folder: Path) -> None:
        last = load_hospitals(folder)["va"].rows[-1]
        names = [*NUMBERS, *YES_NO]
        gaps = {name for name, value in zip(names, last, strict=False) if np.isnan(value)}
        assert gaps == {"chol", "trestbps", "exang"}
        # Chest pain of no known kind is none of the four.
        assert last[len(names) : len(names) + 4].tolist() == [0, 0, 0, 0]

    def test_any_degree_of_disease_is_disease(self, folder: Path) -> None:
        assert load_hospitals(folder)["va"].labels[-1] == 1
        assert set(load_hospitals(folder)["cleveland"].labels) == {0, 1}

    def test_an_empty_cell_takes_the_public_median_and_says_so(self) -> None:
        width = len(NUMBERS) + len(YES_NO)
        public = np.tile(np.arange(3.0)[:, None], width + 7)
        row = np.full((1, width + 7), 9.0)
        row[0, 2] = np.nan
        found = encoded(row, medians(public))
        assert found.shape == (1, 2 * width + 7)
        assert found[0, 2] == 1.0
        assert np.flatnonzero(found[0, width + 7 :]).tolist() == [2]


class TestSplit:
    def test_no_patient_is_in_two_places_and_nobody_is_left_out(self) -> None:
        sizes = dict(zip(HOSPITALS, (30, 29, 12, 20), strict=True))
        numbers = iter(range(1000))
        patients = {
            name: HospitalData(
                np.array([[next(numbers), *np.zeros(14)] for _ in range(size)], dtype=np.float64),
                np.arange(size) % 2,
            )
            for name, size in sizes.items()
        }
        case = split(patients, seed=4)
        private = [part.features[:, 0] for part in case.rows.private]
        tests = [part.features[:, 0] for part in case.tests.values()]
        everybody = np.concatenate([*private, *tests, case.rows.public[:, 0]])
        assert sorted(everybody) == list(range(sum(sizes.values())))
        assert [len(part) for part in private] == [15, 15, 6, 10]
        assert len(case.rows.public) == 23
        assert private[1].min() >= 30
        assert private[1].max() < 59

    def test_another_seed_splits_otherwise(self, folder: Path) -> None:
        first, second = (split(load_hospitals(folder), seed).rows.public for seed in (0, 1))
        assert not np.array_equal(first, second)


class Says:
    def __init__(self, label: int) -> None:
        self.label = label

    def predict(self, X: Features, /) -> Labels:
        return np.full(len(X), self.label)


class TestScores:
    def test_own_patients_and_a_mean_over_hospitals(self) -> None:
        models = {name: Says(int(name == "va")) for name in HOSPITALS}
        shares = {"cleveland": 10, "hungarian": 2, "switzerland": 4, "va": 100}
        tests = {
            name: Labelled(np.zeros((size, 1)), np.full(size, int(name == "va")))
            for name, size in shares.items()
        }
        found = hearts.scored(models, tests, None)
        assert found.own == 1.0
        assert (found.cleveland_everyone, found.va_everyone) == (0.75, 0.25)
        assert found.everyone == pytest.approx((3 * 0.75 + 0.25) / 4)


class TestMeasure:
    def test_every_method_runs_and_only_the_private_one_has_an_epsilon(self, folder: Path) -> None:
        hearts._hospitals.cache_clear()
        found = {method: hearts.measure(Cell(method, 0, 1, 0), folder) for method in Method}
        assert all(one.everyone > 0.7 for one in found.values())
        assert found[Method.POOLED].epsilon is None
        spent = found[Method.PRIVATE].epsilon
        assert spent is not None
        assert 3.5 < spent <= 4.0

    def test_lines_are_means_over_splits_and_judge_consilium_by_each_alone(self) -> None:
        tests = {name: Labelled(np.zeros((4, 1)), np.array([0, 0, 1, 1])) for name in HOSPITALS}
        flat = hearts.scored(dict.fromkeys(HOSPITALS, Says(0)), tests, None)
        results = {Cell(method, part, 5, 0): flat for method in Method for part in range(3)}
        lines = hearts.lines(results)
        judged = {line.where: line.least for line in lines if line.least is not None}
        assert judged == {
            ("Mean, own patients", "Consilium"): pytest.approx(0.49),
            ("Mean, patients of all four", "Consilium"): pytest.approx(0.5),
        }
        assert all(line.ours == (0.5,) for line in lines)
