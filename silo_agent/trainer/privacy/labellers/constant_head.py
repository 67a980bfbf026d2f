"""The head of a training that failed: it knows nothing, says so, and costs what any other head would have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from silo_agent.trainer.models.protocol import Features
from silo_agent.trainer.privacy.labellers.protocol import Probabilities


@dataclass(frozen=True)
class ConstantHead:
    """All classes alike, whatever the row. Picklable."""

    classes: int

    def probabilities(self, rows: Features, /) -> Probabilities:
        """(n, classes), each row adding up to 1."""
        return np.full((len(rows), self.classes), 1 / self.classes)
