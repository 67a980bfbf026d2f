"""Five hospitals and their patients: the breast cancer data split among them, and each hospital's folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

LABELS = ("malignant", "benign")
LABEL_COLUMN = "diagnosis"
PATIENT_COLUMN = "patient_id"
PUBLIC_ROWS = 370
PRIVATE_ROWS = 85
TEST_ROWS = 114


@dataclass(frozen=True)
class Hospital:
    """Who takes part: a name fit for a certificate, and the learner its data scientist chose."""

    name: str
    learner: str

    @property
    def title(self) -> str:
        """The name as a person writes it."""
        return self.name.capitalize()

    @property
    def learner_title(self) -> str:
        """The learner as a person writes it."""
        return _LEARNER_TITLES[self.learner]


_LEARNER_TITLES = {
    "decision_tree": "decision tree",
    "random_forest": "random forest",
    "rulefit": "RuleFit",
    "xgboost": "XGBoost",
    "mlp": "neural network",
}

HOSPITALS = (
    Hospital("bologna", "decision_tree"),
    Hospital("coimbra", "random_forest"),
    Hospital("heidelberg", "rulefit"),
    Hospital("leiden", "xgboost"),
    Hospital("uppsala", "mlp"),
)


@dataclass(frozen=True, eq=False)
class Cohorts:
    """Everyone's rows: measurements in named columns, and `diagnosis` where it is known.

    `public_labels` are the diagnoses of the public rows. Nobody in the federation has them: only the demo, to score.
    """

    public: pd.DataFrame
    public_labels: NDArray[np.str_]
    private: dict[str, pd.DataFrame]
    test: pd.DataFrame


def split_patients(seed: int) -> Cohorts:
    """The 569 patients, split by class: 370 public, 17 to each of five hospitals, 114 for the test."""
    frame = load_breast_cancer(as_frame=True).frame
    frame[LABEL_COLUMN] = np.array(LABELS)[frame.pop("target")]
    rest, test = _split(frame, TEST_ROWS, seed)
    public, private = _split(rest, PRIVATE_ROWS, seed)
    # Sorted by class, every fifth row to a hospital: everyone gets 17 rows with the classes in proportion.
    ordered = private.sort_values(LABEL_COLUMN, kind="stable")
    return Cohorts(
        public=public.drop(columns=LABEL_COLUMN).reset_index(drop=True),
        public_labels=public[LABEL_COLUMN].to_numpy(dtype=str),
        private={
            hospital.name: _with_patient_numbers(ordered.iloc[first :: len(HOSPITALS)], hospital)
            for first, hospital in enumerate(HOSPITALS)
        },
        test=test.reset_index(drop=True),
    )


def write_silo_files(folder: Path, hospital: Hospital, rows: pd.DataFrame, seed: int) -> None:
    """Writes what a hospital's data scientist would: the private file and silo.yaml."""
    folder.mkdir(parents=True, mode=0o700)
    rows.to_csv(folder / "patients.csv", index=False)
    settings = {
        "data": {
            "path": "patients.csv",
            "label": LABEL_COLUMN,
            "patient_id": PATIENT_COLUMN,
        },
        "model": hospital.learner,
        "seed": seed,
        "policy": {"approve": "within_limits", "max_rounds": 1000, "min_silos": len(HOSPITALS)},
    }
    text = yaml.safe_dump(settings, sort_keys=False)
    (folder / "silo.yaml").write_text(text, encoding="utf-8")


def _split(frame: pd.DataFrame, size: int, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    left, taken = train_test_split(
        frame, test_size=size, random_state=seed, stratify=frame[LABEL_COLUMN]
    )
    return left, taken


def _with_patient_numbers(rows: pd.DataFrame, hospital: Hospital) -> pd.DataFrame:
    """The rows in a new order, each with the hospital's own number for the patient."""
    prefix = hospital.name[:2].upper()
    numbers = [f"{prefix}-{number:04d}" for number in range(1, len(rows) + 1)]
    shuffled = rows.sort_index().reset_index(drop=True)
    shuffled.insert(0, PATIENT_COLUMN, numbers)
    return shuffled
