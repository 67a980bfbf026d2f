"""docs/first-day-compose.md, block by block, in containers: what it promises is there at its end.

Run by `make deploy-test`; tests/deploy/stack.py says which programs.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pages import Reader, read
from stack import COMPOSE, CONSORTIUM, NO_PORTS, PATIENCE, ROOT, SILO, Stack, eventually, stack

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1800)]

NEXT_DOOR = """
services:
  agent:
    ports: !reset []
networks:
  # In earnest there is the internet between the two.
  default: {name: PROJECT_consortium, external: true}
"""
TASK = "first-task"


class Person:
    """Someone with the page, a shell and a project of his own; `docker compose` is whatever the tests use."""

    def __init__(self, project: Stack, **environment: str) -> None:
        self.project = project
        settings, _ = read("first-day-compose.md")
        program = " ".join(COMPOSE)
        self._docker = f'docker() {{ shift; {program} --project-name {project.name} "$@"; }}\n'
        self._reader = Reader(settings, patience=PATIENCE, **environment)

    def paste(self, text: str) -> str:
        return self._reader.paste(self._docker + text)


class Day:
    """Both people, and what was printed to them."""

    def __init__(self, folder: Path, ending: ExitStack) -> None:
        self.consortium, self.hospital = folder / "consortium", folder / "hospital"
        self.consortium.mkdir()
        self.hospital.mkdir()
        for name in (CONSORTIUM, ".env.example"):
            shutil.copy(ROOT / name, self.consortium)
        shutil.copytree(ROOT / "docker", self.consortium / "docker")
        theirs = ending.enter_context(
            stack(str(self.consortium / CONSORTIUM), self.consortium, NO_PORTS, {})
        )
        (self.consortium / "compose.override.yaml").write_text(NO_PORTS)
        beside = NEXT_DOOR.replace("PROJECT", theirs.name)
        (self.hospital / "compose.override.yaml").write_text(beside)
        shutil.copy(ROOT / SILO, self.hospital / "compose.yaml")
        ours = ending.enter_context(
            stack(str(self.hospital / "compose.yaml"), self.hospital, beside, {}, "cpu")
        )
        where = {
            "CONSORTIUM": str(self.consortium),
            "HOSPITAL": str(self.hospital),
            "SOURCE": str(ROOT / "docker"),
            "TOKEN": str(folder / "token"),
            "COORDINATOR": "coordinator.example.org",
        }
        self.people = {"admin": Person(theirs, **where), "hospital": Person(ours, **where)}
        self.printed: list[str] = []

    def follow(self) -> None:
        _, blocks = read("first-day-compose.md")
        for block in blocks:
            self.printed.append(self.people[block.who].paste(block.text))


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Day]:
    with ExitStack() as ending:
        made = Day(tmp_path_factory.mktemp("first-day"), ending)
        made.follow()
        yield made


def test_the_restored_consortium_knows_its_task_and_everyone_is_back(day: Day) -> None:
    admin = day.people["admin"].project
    shown = admin.consilium("coordinator", "task", "show", TASK)
    assert shown["task"]["status"] == "TASK_STATUS_FINISHED"
    assert len(shown["history"]) == 3

    def connected() -> bool:
        return bool(admin.consilium("coordinator", "silo", "show", "essen")["connected"])

    assert eventually("the hospital is back", connected)


def test_the_restored_ledger_has_every_release(day: Day) -> None:
    trainer = day.people["hospital"].project
    ledger = trainer.consilium("trainer", "agent", "ledger")
    assert {entry["task"] for entry in ledger["entries"]} == {TASK}
    assert ledger["entries"]


def test_what_was_taken_home_is_there(day: Day) -> None:
    assert (day.hospital / "first-task.joblib").stat().st_size > 1000
    assert list((day.consortium / "exported").iterdir())
    with (day.hospital / "record.csv").open() as file:
        kinds = [row["kind"] for row in csv.DictReader(file)]
    assert kinds.count("ballot") == 3


def test_who_approved_stands_in_the_note(day: Day) -> None:
    tasks = day.people["hospital"].project.consilium("trainer", "agent", "tasks")
    assert "A. Example, data protection officer" in json.dumps(tasks)
