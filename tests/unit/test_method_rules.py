"""Where a method's settings live: one module each, and none at all for a method without settings."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wire.task import methods
from wire.task.definition import TaskDefinition
from wire.task.methods import RULES, Method, MethodRules, rules_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LAST_MEMBER = '    FEDAUX = "fedaux", 4\n'
FIFTH = f'{LAST_MEMBER}    TOY = "toy", 77\n'
USE_IT = """
from wire.task.definition import TaskDefinition
from wire.task.words import task_words

task = TaskDefinition.model_validate(
    {"name": "t", "public_set": "u", "rows": 8, "labels": ["a", "b"], "method": "toy"}
)
sent = task.to_proto()
assert sent.method == 77
back = TaskDefinition.from_proto(type(sent).FromString(sent.SerializeToString()))
assert (back, back.digest) == (task, task.digest)
assert (task.votes_per_ballot, task.label_space("north")) == (1, (0, 1))
assert task_words(task)["method"] == "toy, 50 local steps"
try:
    TaskDefinition.model_validate({**task.model_dump(), "fedkt": {}})
except ValueError as error:
    assert "the section fedkt belongs to method fedkt, not toy" in str(error)
else:
    raise AssertionError("it took the section of another method")
"""


def test_every_module_with_rules_is_in_the_registry() -> None:
    declared = set()
    for module in pkgutil.iter_modules(methods.__path__):
        values = vars(importlib.import_module(f"{methods.__name__}.{module.name}")).values()
        declared |= {
            value
            for value in values
            if isinstance(value, type) and issubclass(value, MethodRules) and value.name
        }
    assert {type(rules) for rules in RULES} == declared


def test_rules_are_those_of_a_method_and_own_fields_of_the_definition() -> None:
    assert {rules.name for rules in RULES} <= set(Method)
    owned = [name for rules in RULES for name in rules.fields]
    assert len(owned) == len(set(owned))
    assert set(owned) <= set(TaskDefinition.model_fields)
    assert set(rules_of("nothing of the kind").fields) == set()


def test_no_other_module_of_the_wire_asks_which_method_it_is() -> None:
    here = ROOT / "wire" / "task" / "methods"
    asking = {
        str(path.relative_to(ROOT)): found
        for path in (ROOT / "wire").rglob("*.py")
        if here not in path.parents and (found := re.findall(r"\bMethod\.[A-Z]+", path.read_text()))
    }
    # A task that names no method follows this one.
    assert asking == {"wire/task/definition.py": ["Method.FEDCT"]}


def test_a_fifth_method_without_settings_is_one_line(tmp_path: Path) -> None:
    tree = tmp_path / "wire"
    shutil.copytree(ROOT / "wire", tree, ignore=shutil.ignore_patterns("__pycache__"))
    module = tree / "task" / "methods" / "__init__.py"
    text = module.read_text()
    assert text.count(LAST_MEMBER) == 1
    module.write_text(text.replace(LAST_MEMBER, FIFTH))
    ran = subprocess.run(
        [sys.executable, "-c", USE_IT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
