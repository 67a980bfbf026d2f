"""The demo's patients: dealt fairly, by seed, and nobody's label where it should not be."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.demo.hospitals import (
    HOSPITALS,
    LABEL_COLUMN,
    LABELS,
    PATIENT_COLUMN,
    Cohorts,
    split_patients,
    write_silo_files,
)
from silo_agent.trainer.data.private_data import load_private
from silo_agent.trainer.settings import read_settings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cohorts() -> Cohorts:
    return split_patients(1)


def rows(frame: pd.DataFrame) -> Counter[bytes]:
    features = frame.drop(columns=[LABEL_COLUMN, PATIENT_COLUMN], errors="ignore")
    return Counter(row.tobytes() for row in features.to_numpy(dtype=float))


def test_every_patient_is_dealt_once(cohorts: Cohorts) -> None:
    hands = [cohorts.public, cohorts.test, *cohorts.private.values()]
    assert [len(hand) for hand in hands] == [370, 114, 17, 17, 17, 17, 17]
    dealt = sum((rows(hand) for hand in hands), Counter[bytes]())
    assert dealt.total() == 569
    assert max(dealt.values()) == 1


def test_the_public_rows_have_no_diagnosis_and_the_demo_keeps_it_aside(cohorts: Cohorts) -> None:
    assert len(cohorts.public.columns) == 30
    assert LABEL_COLUMN not in cohorts.public
    assert len(cohorts.public_labels) == 370
    assert set(cohorts.public_labels) == set(LABELS)


def test_everyone_has_both_classes_in_proportion(cohorts: Cohorts) -> None:
    shares = [np.mean(hand[LABEL_COLUMN] == "malignant") for hand in cohorts.private.values()]
    shares += [np.mean(cohorts.test[LABEL_COLUMN] == "malignant")]
    shares += [np.mean(cohorts.public_labels == "malignant")]
    assert max(shares) - min(shares) < 1 / 17


def test_the_seed_alone_decides() -> None:
    one, same, other = split_patients(3), split_patients(3), split_patients(4)
    assert one.public.equals(same.public)
    assert all(one.private[name].equals(same.private[name]) for name in one.private)
    assert rows(one.test) != rows(other.test)


def test_a_hospitals_folder_is_what_the_trainer_reads(cohorts: Cohorts, tmp_path: Path) -> None:
    hospital = HOSPITALS[2]
    write_silo_files(tmp_path / "silo", hospital, cohorts.private[hospital.name], seed=7)
    settings = read_settings(tmp_path / "silo" / "silo.yaml")
    assert (settings.model.name, settings.seed) == (hospital.learner, 7)
    private = load_private(settings.data, tmp_path / "silo")
    assert private.rows == 17
    assert private.patients is not None
    assert len(set(private.patients.to_pylist())) == 17
    assert set(private.features.column_names) == set(cohorts.public.columns)


def test_five_hospitals_bring_five_learners() -> None:
    assert len({hospital.name for hospital in HOSPITALS}) == 5
    assert len({hospital.learner for hospital in HOSPITALS}) == 5
    assert all(hospital.learner_title for hospital in HOSPITALS)
