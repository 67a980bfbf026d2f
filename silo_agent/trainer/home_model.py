"""The model a hospital keeps: takes rows as they are in the hospital's files, answers with class names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from silo_agent.models.protocol import IterativeLearner, Learner
from silo_agent.trainer.features import Encoder
from silo_agent.trainer.schema_check import stored_rows


@dataclass(frozen=True)
class HomeModel:
    """A fitted learner with what it needs to read raw rows; load it with `joblib.load`."""

    encoder: Encoder
    learner: Learner | IterativeLearner
    labels: tuple[str, ...]

    def predict(self, rows: Any) -> list[str]:
        """One class name per row; ConfigurationError names what does not fit.

        `rows` is a pandas DataFrame or an Arrow table with the public set's columns, in any order and beside
        others; or, where the public set is an array, an array of such rows.
        """
        features = self.encoder.encode(stored_rows(rows, self.encoder.schema), flat=False)
        if not len(features):
            return []
        return [self.labels[int(index)] for index in self.learner.predict(features)]
