"""Neighbouring data sets look alike from the trainer's socket: whatever one patient's row holds, the silo votes and pays.

A real trainer for each data set, asked as its agent (or whoever took that over) asks it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from patience import PATIENCE
from service import CONSILIUM, Service

from coordinator.public_sets.convert import ConvertedSet, convert
from silo_agent.agent.trainer_client import TrainerClient
from silo_agent.shared.home import SiloHome
from wire.consilium.v1 import trainer_pb2
from wire.errors import Refusal
from wire.task.definition import TaskDefinition

LABELS = ["benign", "malignant"]
ROWS, PATIENTS = 30, 40
FRAGILE = """
import numpy as np
from sklearn.tree import DecisionTreeClassifier

class Fragile(DecisionTreeClassifier):
    def fit(self, X, y):
        if (np.asarray(X) == 4711).any():
            raise RuntimeError("patient 4711")
        return super().fit(X, y)
"""
EPSILON_1 = "privacy: {mechanism: private_labeller, epsilon: 1}"
RESPONSES = "privacy: {mechanism: randomized_response, epsilon: 1}"
TEACHERS = "privacy: {mechanism: {name: teacher_votes, teachers: 5, rows: 3}, epsilon: 8}"


def people(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 90, rows)
    return pd.DataFrame({"age": age, "ward": rng.choice(["east", "west"], rows)}).astype(str)


def hospital() -> list[str]:
    """The lines of a CSV; the last patient is the one that is replaced."""
    table = people(PATIENTS, seed=1)
    ill = (table["age"].astype(int) > 50).astype(int)
    table = table.assign(diagnosis=np.take(LABELS, ill), pid=[f"p{n}" for n in range(PATIENTS)])
    return table.to_csv(index=False).splitlines()


def replaced(last: str) -> bytes:
    return "\n".join([*hospital()[:-1], last, ""]).encode("latin-1")


NEIGHBOURS = {
    "an unknown ward": replaced("44,north,benign,p39"),
    "a foreign label": replaced("44,east,unclear,p39"),
    "no label": replaced("44,east,,p39"),
    "an empty cell": replaced(",east,benign,p39"),
    "text in a number": replaced("old,east,benign,p39"),
    "infinity": replaced("inf,east,benign,p39"),
    "a huge number": replaced("1e308,east,benign,p39"),
    "no patient id": replaced("44,east,benign,"),
    "too few cells": replaced("44"),
    "no UTF-8": replaced("44,\xff,benign,p39"),
}


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> ConvertedSet:
    folder = tmp_path_factory.mktemp("u")
    people(ROWS, seed=0).to_csv(folder / "public.csv", index=False)
    return convert(folder / "public.csv", folder / "sets")


def seen_from_the_socket(
    folder: Path, public: ConvertedSet, data: bytes, privacy: str, model: str = "decision_tree"
) -> list[Any]:
    """All that a trainer answers over a task of two rounds, but for labels and how long it took."""
    home = SiloHome(folder)
    home.public_sets.mkdir(parents=True)
    shutil.copy(public.path, home.public_sets / public.digest)
    (folder / "data.csv").write_bytes(data)
    (folder / "fragile.py").write_text(FRAGILE)
    (folder / "silo.yaml").write_text(
        "data: {path: data.csv, label: diagnosis, patient_id: pid}\n"
        f"model: {model}\npolicy: {{approve: within_limits, max_rounds: 2}}\n{privacy}\n"
    )
    definition = TaskDefinition.model_validate(
        {
            "name": "wards",
            "public_set": public.digest,
            "rows": ROWS,
            "labels": LABELS,
            "rounds": {"max_rounds": 2, "quorum": 2},
        }
    )
    consensus = trainer_pb2.ConsensusLabels(
        round=1, data=bytes(definition.shape.as_index().size_bytes)
    )

    async def ask() -> list[Any]:
        link = TrainerClient(home.socket)
        await asyncio.wait_for(link.wait_ready(), PATIENCE)
        digest = definition.digest
        answers: list[Any] = [
            await _answer(lambda: link.prepare(definition.to_proto(), "north")),
            await _answer(lambda: link.vote(digest, 1, None, 0)),
            await _answer(lambda: link.vote(digest, 2, consensus, 1)),
            await _answer(lambda: link.finish(digest, consensus)),
        ]
        await link.close()
        return answers

    trainer = Service(
        ["agent", "trainer", "--home", str(folder)],
        folder / "trainer.log",
        {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(folder), *_path()])},
    )
    trainer.start()
    try:
        return asyncio.run(ask())
    finally:
        trainer.end()


def _path() -> list[str]:
    return list(filter(None, [os.environ.get("PYTHONPATH")]))


async def _answer(call: Callable[[], Any]) -> Any:
    try:
        said = await call()
    except Refusal as refusal:
        return refusal.code
    if isinstance(said, trainer_pb2.VoteResponse):
        assert said.data
        said.ClearField("data")
        said.training.ClearField("duration")
    if isinstance(said, trainer_pb2.FinishResponse):
        said.training.ClearField("duration")
    return said


@pytest.fixture(scope="module")
def usual(
    tmp_path_factory: pytest.TempPathFactory, public: ConvertedSet
) -> Callable[[str], list[Any]]:
    """What is seen of the hospital whose rows all fit, under a mechanism."""

    @cache
    def seen(privacy: str) -> list[Any]:
        data = "\n".join(hospital()).encode()
        found = seen_from_the_socket(tmp_path_factory.mktemp("s"), public, data, privacy)
        assert found[0] is None
        assert not any(answer.budget_spent for answer in found[1:3])
        return found

    return seen


@pytest.mark.parametrize("changed", NEIGHBOURS)
def test_one_patients_row_changes_nothing_that_the_network_side_sees(
    tmp_path: Path, public: ConvertedSet, usual: Callable[[str], list[Any]], changed: str
) -> None:
    seen = seen_from_the_socket(tmp_path, public, NEIGHBOURS[changed], EPSILON_1)
    assert seen == usual(EPSILON_1)


@pytest.mark.parametrize("privacy", [EPSILON_1, RESPONSES, TEACHERS])
@pytest.mark.parametrize("word", ["unclear", "benign"], ids=["no label", "one label"])
def test_a_silo_with_nothing_to_learn_from_votes_and_pays_as_the_others(
    tmp_path: Path,
    public: ConvertedSet,
    usual: Callable[[str], list[Any]],
    privacy: str,
    word: str,
) -> None:
    poor = "\n".join(hospital()).replace("benign", word).replace("malignant", word)
    assert seen_from_the_socket(tmp_path, public, poor.encode(), privacy) == usual(privacy)


def test_a_learner_that_fails_over_one_patient_is_noticed_at_home_alone(
    tmp_path: Path, public: ConvertedSet
) -> None:
    calm, fatal = replaced("44,east,benign,p39"), replaced("4711,east,benign,p39")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    model = "'fragile:Fragile'"
    expected = seen_from_the_socket(tmp_path / "a", public, calm, RESPONSES, model)
    assert expected[0] is None
    assert seen_from_the_socket(tmp_path / "b", public, fatal, RESPONSES, model) == expected
    log = (tmp_path / "b" / "trainer.log").read_text()
    assert "RuntimeError" in log
    assert "patient 4711" not in log
    command = [CONSILIUM, "agent", "tasks", "--json", "--home", str(tmp_path / "b")]
    told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert "failed with RuntimeError at fragile.py" in told.stdout
