"""A data set in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from silo_agent.trainer.models.protocol import Labelled

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows (n, d) as numbers, their class indices (n,) and how many classes there are."""

    name: str
    rows: Labelled = field(repr=False)
    classes: int
    reserved: int = 0
    """So many of the last rows are the publisher's test rows: used for nothing else."""
    patients: Indices | None = field(default=None, repr=False)
    """(n,) whose row it is, where one patient has several: they all go to one place."""
