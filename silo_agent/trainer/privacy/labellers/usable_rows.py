"""The rows a head can learn from; whose they are is told in numbers that leave no patient out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from silo_agent.trainer.models.protocol import Labelled


def usable_rows(
    private: Labelled, patients: npt.NDArray[np.int64], classes: int
) -> tuple[Labelled, npt.NDArray[np.int64]]:
    """The rows with a class index, and their patients; the others contribute nothing."""
    usable = (private.labels >= 0) & (private.labels < classes)
    return private[usable], patients[usable]
