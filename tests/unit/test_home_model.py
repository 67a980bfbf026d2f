"""The exported model reads rows as a person has them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.tree import DecisionTreeClassifier
from typer.testing import CliRunner

from coordinator.public_sets.convert import convert
from silo_agent.shared.home import SiloHome
from silo_agent.trainer.cli.agent import private
from silo_agent.trainer.data.features import Encoder
from silo_agent.trainer.data.home_model import HomeModel
from silo_agent.trainer.task_folder import TaskFolder
from wire.errors import ConfigurationError
from wire.task.definition import TaskDefinition

pytestmark = pytest.mark.slow

PUBLIC = pd.DataFrame({"age": [20, 30, 70, 90], "sex": ["w", "m", "m", "w"]})
OLD = ("no", "no", "yes", "yes")


def model(path: Path, folder: Path) -> HomeModel:
    """Knows of every public row whether it is in the second half, and was exported and loaded."""
    converted = convert(path, folder / "sets")
    encoder = Encoder.from_public(converted.schema, converted.path)
    rows = encoder.public()
    learner = DecisionTreeClassifier(random_state=0)
    learner.fit(rows, np.arange(len(rows)) >= len(rows) // 2)
    joblib.dump(HomeModel(encoder, learner, ("no", "yes")), folder / "model.joblib")
    loaded = joblib.load(folder / "model.joblib")
    assert isinstance(loaded, HomeModel)
    return loaded


@pytest.fixture
def table_model(tmp_path: Path) -> HomeModel:
    PUBLIC.to_parquet(tmp_path / "public.parquet")
    return model(tmp_path / "public.parquet", tmp_path)


@pytest.mark.parametrize(
    "rows",
    [
        PUBLIC,
        pa.table(PUBLIC),
        PUBLIC[["sex", "age"]],
        PUBLIC.assign(age=PUBLIC.age.astype(str), sex=PUBLIC.sex.astype("category")),
        PUBLIC.set_axis([7, 7, 8, 9]).rename(columns={"age": " age "}),
        PUBLIC.assign(remark=[1, "a", None, object()]),
    ],
    ids=["frame", "arrow", "reordered", "as words", "padded name", "extra column"],
)
def test_a_table_is_read_by_its_column_names(table_model: HomeModel, rows: Any) -> None:
    assert table_model.predict(rows) == list(OLD)


def test_no_rows_have_no_classes(table_model: HomeModel) -> None:
    assert table_model.predict(PUBLIC.iloc[:0]) == []


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (PUBLIC.drop(columns="sex"), "no columns named sex"),
        (PUBLIC.assign(age=[20, 30, None, 90]), "age: cells that are empty"),
        (PUBLIC.assign(age=["secret", "1", "2", "3"]), "age: cells that hold no number: 1"),
        (
            PUBLIC.assign(sex="secret"),
            "sex: cells that have a category that the public set lacks: 4",
        ),
        (PUBLIC.assign(age=["secret", 1, 2, 3]), "not a table"),
        (PUBLIC.age.to_numpy(), "not a table"),
        ([["secret"]], "not a table"),
    ],
    ids=["missing", "empty", "no number", "new category", "mixed", "array", "list"],
)
def test_rows_that_do_not_fit_are_refused_without_quoting_a_cell(
    table_model: HomeModel, rows: Any, sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence) as caught:
        table_model.predict(rows)
    assert "secret" not in caught.value.sentence + caught.value.hint


def test_an_array_model_takes_arrays_of_the_public_shape(tmp_path: Path) -> None:
    public = np.arange(16, dtype="uint8").reshape(4, 4)
    np.save(tmp_path / "public.npy", public)
    made = model(tmp_path / "public.npy", tmp_path)
    assert made.predict(public[::-1]) == list(OLD[::-1])
    with pytest.raises(ConfigurationError, match="shape"):
        made.predict(public[:, :3])
    with pytest.raises(ConfigurationError, match="elements are float64"):
        made.predict(public.astype(float))


@pytest.mark.parametrize("place", ["a pipe", "the kept model", "a folder"])
def test_an_export_to_what_cannot_be_written_says_why(tmp_path: Path, place: str) -> None:
    task = TaskDefinition(name="trial", public_set="0" * 64, labels=("no", "yes"))
    kept = TaskFolder(SiloHome(tmp_path).tasks, task.digest)
    kept.keep_definition(task)
    kept.keep_model("a model")
    out = {"a pipe": tmp_path / "pipe", "the kept model": kept.model_path(), "a folder": tmp_path}[
        place
    ]
    os.mkfifo(tmp_path / "pipe")
    words = ["export-model", "trial", "--out", str(out), "--home", str(tmp_path)]
    told = CliRunner().invoke(private, words).exception
    assert isinstance(told, ConfigurationError)
    reason = "Is a directory" if place == "a folder" else "it is a pipe or the kept model itself"
    assert told.sentence == f"{out} cannot be written: {reason}."
    assert kept.model_path() is not None
