"""Features scaled by what the public rows look like, which everyone may see."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from silo_agent.trainer.models.protocol import Features

Reals = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Scaling:
    """Subtracts a mean and divides by a deviation, feature by feature."""

    mean: Reals = field(repr=False)
    deviation: Reals = field(repr=False)

    @classmethod
    def from_public(cls, public: Features) -> Scaling:
        """Mean 0 and deviation 1 on U; a feature that is constant there keeps its scale."""
        deviation = public.std(axis=0)
        return cls(public.mean(axis=0), np.where(deviation > 1e-8, deviation, 1.0))

    def __call__(self, rows: Features) -> Features:
        """(n, d) the rows, scaled."""
        return (rows - self.mean) / self.deviation
