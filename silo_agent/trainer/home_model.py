"""The model a hospital keeps: takes rows as they are in the hospital's files, answers with class names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from silo_agent.models.protocol import IterativeLearner, Learner
from silo_agent.trainer.features import Encoder


@dataclass(frozen=True)
class HomeModel:
    """A fitted learner with what it needs to read raw rows; load it with `joblib.load`."""

    encoder: Encoder
    learner: Learner | IterativeLearner
    labels: tuple[str, ...]

    def predict(self, rows: Any) -> list[str]:
        """Class names for a DataFrame (tables, text) or an array with the public set's columns."""
        indices = self.learner.predict(self.encoder.encode(rows, flat=False))
        return [self.labels[int(index)] for index in indices]
