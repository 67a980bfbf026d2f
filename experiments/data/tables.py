"""Tables as numbers: one column per number, one per category of the published code book."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_svmlight_file

from experiments.data.files import external_file
from silo_agent.trainer.models.protocol import Labelled

COD_RNA_FILES = ("cod-rna.bz2", "cod-rna.t.bz2")
"""As LIBSVM's collection has them."""
_NO_FEATURES = ["income", "split", "fnlwgt"]


def breast_cancer() -> Labelled:
    """569 × 30; 0 malignant, 1 benign."""
    features, labels = load_breast_cancer(return_X_y=True)
    return Labelled(features, labels.astype(np.int64))


def adult(folder: Path | None, *left_out: str) -> tuple[Labelled, int]:
    """The rows, the publisher's test rows last, and how many these are; `fnlwgt` is no feature.

    `education` says in words what `education-num` says; without it a linear model of few rows overfits less.
    """
    frame = _adult(folder)
    labels = np.asarray(frame["income"] == ">50K", dtype=np.int64)
    columns = frame.drop(columns=[*_NO_FEATURES, *left_out])
    return Labelled(_encoded(columns), labels), int((frame["split"] == "test").sum())


def adult_attributes(folder: Path | None) -> list[npt.NDArray[np.int64]]:
    """Which encoded columns each of Adult's thirteen attributes has; together they are all."""
    columns = _adult(folder).drop(columns=_NO_FEATURES)
    names = pd.get_dummies(columns).columns
    return [
        np.flatnonzero([name == attribute or name.startswith(f"{attribute}_") for name in names])
        for attribute in columns.columns
    ]


def _adult(folder: Path | None) -> pd.DataFrame:
    frame = pd.read_csv(external_file(folder, "adult", "adult.csv.gz"), na_values="?")
    # As the publisher has it: training rows first.
    return frame.sort_values("split", ascending=False, kind="stable")


def mushroom(folder: Path | None) -> Labelled:
    """8 124 mushrooms by 22 categories; 1 is poisonous. A missing stalk root is a category of its own."""
    frame = pd.read_csv(external_file(folder, "mushroom", "mushrooms.csv.gz"))
    labels = np.asarray(frame["class"] == "p", dtype=np.int64)
    return Labelled(_encoded(frame.drop(columns="class")), labels)


def wine(folder: Path | None) -> Labelled:
    """Red (1) or white (0) from eleven measurements and the quality; each distinct wine once."""
    frame = pd.read_csv(
        external_file(folder, "wine-quality", "winequality.csv.gz")
    ).drop_duplicates()
    labels = np.asarray(frame["type"] == "red", dtype=np.int64)
    return Labelled(_encoded(frame.drop(columns="type")), labels)


def covertype(folder: Path | None) -> Labelled:
    """581 012 × 54, seven classes from 0."""
    with np.load(external_file(folder, "covertype", "covtype.npz")) as file:
        return Labelled(file["X"].astype(np.float32), file["y"].astype(np.int64) - 1)


def cod_rna(folder: Path | None) -> Labelled:
    """331 152 × 8, both published parts; 1 is a non-coding RNA."""
    parts = [
        load_svmlight_file(str(external_file(folder, "cod-rna", name)), n_features=8)
        for name in COD_RNA_FILES
    ]
    features = np.concatenate([rows.toarray() for rows, _ in parts])
    labels = np.concatenate([signs > 0 for _, signs in parts])
    return Labelled(features.astype(np.float32), labels.astype(np.int64))


def _encoded(frame: pd.DataFrame) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return pd.get_dummies(frame, dtype=np.float64).to_numpy(dtype=np.float64)
