"""The demo's last word: how good each hospital's model is alone and with the others' votes, and what left each building for it."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, cast

import joblib
import numpy as np
import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from silo_agent.shared.home import SiloHome
from silo_agent.trainer.data.features import Encoder
from silo_agent.trainer.data.home_model import HomeModel
from silo_agent.trainer.data.private_data import load_private
from silo_agent.trainer.data.schema_check import prepare
from silo_agent.trainer.models.catalogue import build
from silo_agent.trainer.models.protocol import Learner
from silo_agent.trainer.settings import SiloSettings, read_settings
from silo_agent.trainer.task_folder import find_task
from wire.errors import ConfigurationError
from wire.public_content import inspect
from wire.runtime.terminal import size
from wire.task.definition import TaskDefinition

HOSPITALS = Path("/hospitals")
TASK = "biopsies"
LABEL = "diagnosis"
PATIENCE = 300
"""Seconds for the final models, which are trained after the last round."""


def final_model(home: SiloHome) -> Path:
    """Where the hospital's final model lies, once it does."""
    for _ in range(PATIENCE):
        try:
            if path := find_task(home.tasks, TASK).model_path():
                return path
        except ConfigurationError:
            pass
        time.sleep(1)
    sys.exit(f"{home.root.name} has no final model after {PATIENCE} s.")


def alone(home: SiloHome, settings: SiloSettings, task: TaskDefinition) -> HomeModel:
    """The hospital's learner, fitted to its own rows only."""
    public = home.public_sets / task.public_set
    _, schema = inspect(public)
    encoder = Encoder.from_public(schema, public)
    data = settings.data.model_copy(update={"path": home.root / "data" / "patients.csv"})
    rows = prepare(load_private(data, home.root), schema, task.labels)
    features = encoder.encode(rows.features, flat=False)
    shape = tuple(features.shape[1:])
    # None of the three continues from an earlier state.
    learner = cast("Learner", build(settings.model, len(task.labels), shape, settings.seed))
    learner.fit(features, rows.labels)
    return HomeModel(encoder, learner, task.labels)


def accuracy(model: HomeModel, test: pd.DataFrame) -> float:
    """Share of the test patients whose diagnosis the model names."""
    return float(np.mean(np.array(model.predict(test)) == test[LABEL].to_numpy()))


def recorded(home: SiloHome) -> list[dict[str, Any]]:
    """The entries of the agent's record, whose code this image does not have (docs/audit.md)."""
    lines = (home.agent / "audit.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["entry"] for line in lines]


def moved(traffic: list[dict[str, Any]], direction: str) -> str:
    """`5 × ballot, 245 B`."""
    crossed = [move for move in traffic if move["direction"] == direction]
    counts = Counter(str(move["kind"]) for move in crossed)
    said = ", ".join(f"{count} × {kind}" for kind, count in counts.items())
    return f"{said}: {size(sum(move['bytes'] for move in crossed))}"


def main() -> None:
    """Prints one row for each hospital."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for column in ("hospital", "learner", "alone", "with the others", "left the building", "came"):
        table.add_column(column, no_wrap=True)
    for folder in sorted(HOSPITALS.iterdir()):
        home = SiloHome(folder)
        model = joblib.load(final_model(home))
        task = find_task(home.tasks, TASK).definition()
        settings = read_settings(home.settings_file)
        test = pd.read_csv(folder / "data" / "test.csv")
        traffic = recorded(home)
        table.add_row(
            folder.name,
            settings.model.name,
            f"{accuracy(alone(home, settings, task), test):.3f}",
            f"{accuracy(model, test):.3f}",
            moved(traffic, "out"),
            moved(traffic, "in"),
        )
    console = Console(width=140, highlight=False)
    console.print(f"Task {TASK} is finished. Accuracy on {len(test)} patients nobody trained on:")
    console.print(table)
    console.print(
        f"A ballot has one label for each of {task.rows} public rows. No patient's row, no weight and no probability left. "
        "No noise was added, so every ledger says ε = ∞: docs/privacy.md."
    )


if __name__ == "__main__":
    main()
