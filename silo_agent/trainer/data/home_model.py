"""The model a hospital keeps: takes rows as they are in the hospital's files, answers with class names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from silo_agent.trainer.data.features import Encoder, Rows
from silo_agent.trainer.data.schema_check import stored_rows
from silo_agent.trainer.models.extractors.protocol import Extractor
from silo_agent.trainer.models.protocol import AnyLearner, Labels, reads_of
from silo_agent.trainer.models.stored import load
from wire.errors import ConfigurationError, ConsiliumError


@dataclass(frozen=True)
class HomeModel:
    """A fitted learner with what it needs to read raw rows; load it with `joblib.load`."""

    encoder: Encoder
    learner: AnyLearner
    labels: tuple[str, ...]
    extractor: Extractor | None = None
    """What the learner sees rows through, where silo.yaml says `features: extractor`."""

    def predict(self, rows: Any) -> list[str]:
        """One class name per row; ConfigurationError names what does not fit.

        `rows` is a pandas DataFrame or an Arrow table with the public set's columns, in any order and beside
        others; or, where the public set is an array, an array of such rows.
        """
        return [
            self.labels[index] for index in self.indices(stored_rows(rows, self.encoder.schema))
        ]

    def indices(self, rows: Rows) -> Labels:
        """(n,) class indices of rows in the public set's stored form."""
        texts = reads_of(self.learner) == "texts"
        features = self.encoder.encode(rows, flat=False, texts=texts)
        if not len(features):
            return np.empty(0, dtype=np.int64)
        if self.extractor is not None:
            features = self.extractor.transform(features)
        return np.asarray(self.learner.predict(features), dtype=np.int64)


def load_model(path: Path) -> HomeModel:
    """The model in a file; ConfigurationError if there is none.

    Reading it runs whatever code its maker put in: only for files made at home or by somebody trusted.
    """
    try:
        model = load(path)
    except FileNotFoundError:
        raise ConfigurationError(f"{path} does not exist.", "Check the path.") from None
    except ConsiliumError:
        raise
    except Exception as error:
        # What unpickling raises depends on what the file holds.
        raise ConfigurationError(
            f"{path} cannot be read as a model ({type(error).__name__}).",
            "Make it with `consilium student train` or `consilium agent export-model`, with this version.",
        ) from error
    if not isinstance(model, HomeModel):
        raise ConfigurationError(
            f"{path} holds no model of Consilium.",
            "Make one with `consilium student train` or `consilium agent export-model`.",
        )
    return model
