"""Test accuracy of the same learner fitted three ways: alone, with Consilium, on everyone's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import joblib
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.demo.hospitals import LABEL_COLUMN, LABELS
from silo_agent.shared.home import SiloHome
from silo_agent.trainer.data.features import Encoder
from silo_agent.trainer.data.home_model import HomeModel
from silo_agent.trainer.data.private_data import load_private
from silo_agent.trainer.data.schema_check import prepare
from silo_agent.trainer.models.catalogue import build
from silo_agent.trainer.models.protocol import Labelled, Learner
from silo_agent.trainer.settings import SiloSettings, read_settings
from wire.public_content import inspect


@dataclass(frozen=True)
class Scores:
    """Shares of the test patients one hospital's learner gets right."""

    alone: float
    """Fitted on its own rows."""
    consilium: float
    """The exported model: its own rows and the consensus."""
    pooled: float
    """Fitted on the rows of all hospitals together, which no hospital may see."""

    @property
    def gain(self) -> float:
        """What taking part external_file."""
        return self.consilium - self.alone


def score(
    homes: Mapping[str, SiloHome], models: Mapping[str, Path], public_file: Path, test: pd.DataFrame
) -> dict[str, Scores]:
    """Scores of every hospital on `test`, which has the public columns and the diagnosis."""
    _, schema = inspect(public_file)
    encoder = Encoder.from_public(schema, public_file)
    settings = {name: read_settings(home.settings_file) for name, home in homes.items()}
    private = {name: _private(settings[name], home.root, encoder) for name, home in homes.items()}
    everyone = _together(list(private.values()))
    return {
        name: Scores(
            alone=accuracy(_fitted(settings[name], private[name], encoder), test),
            consilium=accuracy(joblib.load(models[name]), test),
            pooled=accuracy(_fitted(settings[name], everyone, encoder), test),
        )
        for name in homes
    }


def accuracy(model: HomeModel, test: pd.DataFrame) -> float:
    """Share of the rows whose diagnosis the model names."""
    return float(np.mean(np.array(model.predict(test)) == test[LABEL_COLUMN].to_numpy()))


def agreement(labels: NDArray[np.integer], truth: NDArray[np.str_]) -> float:
    """Share of rows whose consensus label is the true one; an abstention (−1) is not."""
    names = np.array([*LABELS, ""])
    return float(np.mean(names[labels] == truth))


def _private(settings: SiloSettings, base: Path, encoder: Encoder) -> Labelled:
    rows = prepare(load_private(settings.data, base), encoder.schema, LABELS)
    return Labelled(encoder.encode(rows.features, flat=False), rows.labels)


def _together(parts: Sequence[Labelled]) -> Labelled:
    return Labelled(
        np.concatenate([part.features for part in parts]),
        np.concatenate([part.labels for part in parts]),
    )


def _fitted(settings: SiloSettings, rows: Labelled, encoder: Encoder) -> HomeModel:
    """The hospital's learner as in its first round, before there is any consensus."""
    row_shape = tuple(rows.features.shape[1:])
    # None of the demo's learners continues from an earlier state.
    learner = cast("Learner", build(settings.model, len(LABELS), row_shape, settings.seed))
    learner.fit(rows.features, rows.labels)
    return HomeModel(encoder, learner, LABELS)
