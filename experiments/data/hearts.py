"""UCI heart disease: the patients of four real hospitals, as each of them recorded them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from experiments.data.files import external_file
from silo_agent.trainer.models.protocol import Features, Labelled, Labels

FILE = "heart_disease_4hospitals.csv.gz"
HOSPITALS = {
    "cleveland": "Cleveland",
    "hungarian": "Budapest",
    "switzerland": "Zurich and Basel",
    "va": "Long Beach",
}
NUMBERS = ("age", "trestbps", "chol", "thalach", "oldpeak")
YES_NO = ("sex", "fbs", "exang")
KINDS = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2)}
"""Chest pain and resting ECG, with the categories of the code book.

`slope`, `ca` and `thal` are left out: three of the four hospitals hardly measured them.
"""
_NOT_MEASURED = ("chol", "trestbps")
"""Nobody has a cholesterol or a blood pressure of zero: it stands for an empty cell."""


@dataclass(frozen=True, eq=False)
class HospitalData:
    """A hospital's patients: rows with NaN for empty cells, and whether the coronary arteries are diseased."""

    rows: npt.NDArray[np.float64] = field(repr=False)
    labels: Labels = field(repr=False)


def load_hospitals(folder: Path | None) -> dict[str, HospitalData]:
    """Every hospital's patients, by name."""
    frame = pd.read_csv(external_file(folder, "heart-disease", FILE))
    return {name: _hospital_data(frame[frame["hospital"] == name]) for name in HOSPITALS}


def medians(public: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """(columns,) what an empty cell is taken for: the public rows' median."""
    middle: npt.NDArray[np.float64] = np.nanmedian(public, axis=0)
    return middle


def encoded(rows: npt.NDArray[np.float64], middle: npt.NDArray[np.float64]) -> Features:
    """Rows without gaps; for every number and yes-or-no also whether it was missing, as the product encodes tables."""
    missing = np.isnan(rows)
    filled = np.where(missing, middle, rows)
    return np.concatenate([filled, missing[:, : len(NUMBERS) + len(YES_NO)]], axis=1)


def labelled(
    hospital: HospitalData, chosen: npt.NDArray[np.int64], middle: npt.NDArray[np.float64]
) -> Labelled:
    """Some of a hospital's patients, encoded."""
    return Labelled(encoded(hospital.rows[chosen], middle), hospital.labels[chosen])


def _hospital_data(frame: pd.DataFrame) -> HospitalData:
    columns = frame[[*NUMBERS, *YES_NO]].astype(np.float64)
    columns[list(_NOT_MEASURED)] = columns[list(_NOT_MEASURED)].replace(0.0, np.nan)
    # A category that is not known is none of them.
    kinds = [
        (frame[name] == value).to_numpy(np.float64)[:, None]
        for name, values in KINDS.items()
        for value in values
    ]
    rows = np.concatenate([columns.to_numpy(), *kinds], axis=1)
    return HospitalData(rows, np.asarray(frame["num"] > 0, dtype=np.int64))
