"""A fifth method takes one file and one line: added to a copy of the product and run as a deployed task."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from federation import HERE, LABELS, Federation, federation
from service import CONSILIUM, PATIENCE

from wire.ballot import BallotShape, Encoding, unpack

REPOSITORY = HERE.parents[1]
REGISTRY = Path("wire/task/methods/__init__.py")
LAST_LINE = '    FEDAUX = "fedaux", 4\n'
NEW_LINE = '    COMMONEST = "commonest", 99\n'


def with_a_fifth_method(folder: Path) -> Path:
    """A copy of the product with one more file and one more line."""
    for package in ("wire", "coordinator", "silo_agent"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / package, folder / package, ignore=ignored)
    shutil.copy(HERE / "fifth_method.py", folder / "silo_agent/trainer/methods/commonest.py")
    registry = folder / REGISTRY
    text = registry.read_text()
    assert text.count(LAST_LINE) == 1
    registry.write_text(text.replace(LAST_LINE, LAST_LINE + NEW_LINE))
    return folder


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Federation]:
    tree = with_a_fifth_method(tmp_path / "tree")
    path = [str(tree), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
        with federation(tmp_path / "live") as made:
            made.publish()
            made.run(*(made.join(name, "decision_tree") for name in ("east", "north", "west")))
            yield made


def consilium(live: Federation, *arguments: object) -> str:
    done = subprocess.run(
        [CONSILIUM, *map(str, arguments), "--home", str(live.home)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def commonest(path: Path) -> int:
    return LABELS.index(pd.read_csv(path)["diagnosis"].mode()[0])


def test_it_is_created_approved_voted_and_finished_like_any_other(live: Federation) -> None:
    definition = {
        "name": "common",
        "method": "commonest",
        "public_set": "wards",
        "labels": list(LABELS),
        "rounds": {"max_rounds": 2, "quorum": 3, "deadline": "1h", "stop_patience": 0},
    }
    file = live.folder / "task.yaml"
    file.write_text(yaml.safe_dump(definition))
    consilium(live, "task", "create", "--file", file)
    consilium(live, "task", "start", "common")
    finished = live.until_finished("common")

    shape = BallotShape(finished.task.definition.rows, len(LABELS), Encoding.INDEX)
    own = [commonest(silo.home.root / "data.csv") for silo in live.silos.values()]
    expected = int(np.bincount(own).argmax())
    consensuses = [unpack(payload, shape) for payload in live.consensuses("common")]
    assert len(consensuses) == 2
    assert all(set(labels.tolist()) == {expected} for labels in consensuses)
    assert "commonest" in consilium(live, "task", "show", "common")


def test_the_product_itself_knows_no_such_method(tmp_path: Path) -> None:
    """What the copy was given is all that it had not: without the line the file is no method."""
    program = "from wire.task.methods import Method; print(*Method)"
    outcome = subprocess.run(
        [CONSILIUM.with_name("python"), "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert outcome.stdout.split() == ["fedct", "fedkt", "cofed", "fedaux"]
