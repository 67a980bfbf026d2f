"""Extractors that are one matrix: principal components, and singular vectors of words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo_agent.trainer.models.protocol import Features
from wire.errors import ConfigurationError
from wire.extractor_file import ExtractorFile, ExtractorKind

FARTHEST = 10.0
"""Standardised numbers are cut here, so that one odd public row does not decide the public norm."""
# Directions with a smaller share of the largest variance are rounding.
_LEAST_VARIANCE = 1e-6

Matrix = NDArray[np.float64]


def scaling(rows: Features) -> tuple[Matrix, Matrix]:
    """Mean and deviation per column of rows (n, d); what is constant keeps its scale."""
    columns = np.asarray(rows, dtype=np.float64)
    mean, deviation = columns.mean(axis=0), columns.std(axis=0)
    # A constant column of large numbers has the deviation of their rounding.
    varies = deviation > 1e-12 * np.abs(mean)
    return mean, np.where(varies, deviation, 1.0)


def standardised(rows: Features, mean: NDArray[Any], scale: NDArray[Any]) -> Matrix:
    """Rows (n, d) in public deviations from the public mean, at most `FARTHEST`."""
    centred: Matrix = (np.asarray(rows, dtype=np.float64) - mean) / scale
    return np.clip(centred, -FARTHEST, FARTHEST)


def strongest(rows: Features, most: int, exactly: bool) -> Matrix:
    """(k, d) right singular vectors of rows (n, d), the strongest first, k ≤ `most`.

    They keep their strengths: whitened to equal ones, weak directions drown the strong in every learner that is
    regularised (docs/fedaux.md). `exactly` refuses a smaller k. Each vector's largest entry is positive.
    """
    directions, strengths = _directions(np.asarray(rows, dtype=np.float64), most)
    kept = directions[strengths**2 > _LEAST_VARIANCE * max(float(strengths[0] ** 2), 1e-12)]
    _require(len(kept), most, exactly)
    return kept


def projection(file: ExtractorFile) -> Callable[[Features], Features]:
    """What `pca` and `tfidf_svd` do to rows (n, …)."""
    components = file.arrays["components"].astype(np.float64).T

    def apply(rows: Features) -> Features:
        flat: Features = np.asarray(rows, dtype=np.float64).reshape(len(rows), -1)
        if file.header.kind is ExtractorKind.PCA:
            flat = standardised(flat, file.arrays["mean"], file.arrays["scale"])
        return np.asarray(flat @ components, dtype=np.float32)

    return apply


def _directions(rows: Matrix, most: int) -> tuple[Matrix, Matrix]:
    """Right singular vectors (k, d) and values (k,), from the smaller of the two Gram matrices."""
    count, width = rows.shape
    wide = width > count
    values, vectors = np.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    strongest = np.argsort(values)[::-1][: min(most, count, width)]
    strengths = np.sqrt(np.maximum(values[strongest], 0.0))
    directions = vectors[:, strongest].T
    if wide:
        directions = (directions @ rows) / np.maximum(strengths, 1e-12)[:, None]
    largest = np.abs(directions).argmax(axis=1)
    signs = np.sign(directions[np.arange(len(directions)), largest])
    return directions * np.where(signs == 0, 1.0, signs)[:, None], strengths


def _require(kept: int, wanted: int, exactly: bool) -> None:
    if not kept:
        raise ConfigurationError(
            "The public rows are all alike; nothing can be learned from them.",
            "Choose another public set.",
        )
    if exactly and kept < wanted:
        raise ConfigurationError(
            f"The public rows differ in {kept} directions only, and {wanted} dimensions are asked for.",
            f"Ask for at most {kept} dimensions.",
        )
