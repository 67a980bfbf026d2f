"""A federation whose processes die where they are told to, are started again, and must not show it in the end.

Coordinator, agents and trainers are `consilium`'s own processes; admin calls are made in this one. Whoever waits
for something here also attends to the dead: looks at what they left on the disk, then starts them again.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from coordinator_process import consilium
from mortal import Mortal
from patience import LEASE, PATIENCE
from service import free_port

from coordinator.cli.connection import AdminClient, admin_link
from coordinator.cli.coordinator import init
from coordinator.cli.public_set import add
from silo_agent.shared.home import SiloHome
from wire.consilium.v1 import admin_pb2, task_pb2
from wire.errors import UNREACHABLE, Refusal
from wire.task.definition import TaskDefinition

T = TypeVar("T")
Look = Callable[["Federation"], None]

SILOS = ("north", "south", "west")
ROUNDS = 3
ROWS = 61
TASK = "trial"
# Unlike the others, it goes on from where it was the round before.
MODELS = {"north": "decision_tree", "south": "decision_tree", "west": "turning:Turning"}


class Federation:
    """A coordinator and three hospitals. `points` says where which process dies, `looks` what is seen then."""

    def __init__(
        self,
        folder: Path,
        points: Mapping[str, Sequence[str]] | None = None,
        looks: Mapping[str, Look] | None = None,
        *,
        supervised: Sequence[str] = (),
        database: str = "",
    ) -> None:
        self.folder = folder
        self.home = folder / "coordinator"
        self.failures: dict[str, Exception] = {}
        self.processes: dict[str, Mortal] = {}
        self.joiners: list[Mortal] = []
        self._restarts = 0
        self._points = points or {}
        self._looks = looks or {}
        self._supervised = supervised
        self.port, enrolment_port, metrics_port = (free_port() for _ in range(3))
        init(
            home=self.home,
            host=["localhost"],
            listen="127.0.0.1",
            port=self.port,
            enrolment_port=enrolment_port,
            metrics_port=metrics_port,
            lease=LEASE,
            database=database,
        )
        self.coordinator = self._keep("coordinator", "coordinator", "serve", "--home", self.home)

    def silo(self, name: str) -> SiloHome:
        """A hospital's folder."""
        return SiloHome(self.folder / name)

    # -- processes -------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Starts the coordinator, and waits until it answers."""
        before = len(self.coordinator.events("coordinator_ready"))
        self.coordinator.start()
        end = time.monotonic() + PATIENCE
        while len(self.coordinator.events("coordinator_ready")) == before:
            assert not self.coordinator.ended(), self.coordinator.text()
            assert time.monotonic() < end, "the coordinator never served"
            time.sleep(0.05)

    def run_silo(self, name: str) -> None:
        """Starts a hospital: agent and trainer side by side, or one under the other."""
        home = self.silo(name).root
        if name in self._supervised:
            self._keep(f"{name}-agent", "agent", "run", "--home", home).start()
            return
        self._keep(f"{name}-trainer", "agent", "trainer", "--home", home).start()
        self._keep(f"{name}-agent", "agent", "relay", "--home", home).start()

    def attend(self) -> None:
        """Looks at whoever has died since, and starts them again."""
        for process in self.processes.values():
            if not process.ended():
                continue
            self._look_at(process)
            if process is self.coordinator:
                self.serve()
                self._restarts += 1
            else:
                process.start()

    def _look_at(self, dead: Mortal) -> None:
        point = dead.place_of_death()
        look = self._looks.get(point)
        try:
            if look is not None:
                look(self)
        except Exception as failure:
            self.failures[point] = failure

    def until(self, what: str, probe: Callable[[], T | None]) -> T:
        """The first truthy answer of `probe`, which may be refused while the coordinator is away."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            self.attend()
            try:
                if found := probe():
                    return found
            except Refusal as refusal:
                if not refusal.is_a(UNREACHABLE):
                    raise
            time.sleep(0.05)
        raise AssertionError(f"never happened: {what}")

    def insist(self, act: Callable[[], T]) -> T:
        """What an act gives; made again, as a person would, if the coordinator died in it."""
        while True:
            try:
                return act()
            except Refusal as refusal:
                if not refusal.is_a(UNREACHABLE):
                    raise
                self._await_restart()

    def _await_restart(self) -> None:
        before = self._restarts
        self.until("the coordinator's death", lambda: self._restarts > before)

    def _mortal(self, name: str, *arguments: object) -> Mortal:
        log, points = self.folder / f"{name}.log", self._points.get(name, ())
        return Mortal(log, *arguments, points=points)

    def _keep(self, name: str, *arguments: object) -> Mortal:
        """A process that is attended to."""
        self.processes[name] = self._mortal(name, *arguments)
        return self.processes[name]

    def died_at(self) -> dict[str, tuple[str, ...]]:
        """Where which process has died."""
        everyone = [*self.joiners, *self.processes.values()]
        return {process.name: process.died_at() for process in everyone if process.points}

    def end(self) -> None:
        """Kills everything and shows the logs, which pytest prints if a test failed."""
        for process in [*self.joiners, *self.processes.values()]:
            process.end()
            print(f"----- {process.log.name}\n{process.text()}")

    # -- the life of a federation ------------------------------------------------------------------------

    def publish(self) -> None:
        """Publishes the public set, `wards`."""
        path = self.folder / "wards.csv"
        points = np.random.default_rng(0).normal(size=(ROWS, 2))
        path.write_text("\n".join(["a,b", *(f"{a:.4f},{b:.4f}" for a, b in points)]) + "\n")
        self.insist(lambda: add("wards", path, home=self.home))

    def join(self, name: str) -> None:
        """Registers a hospital, has it join and writes its data and silo.yaml."""
        request = admin_pb2.RegisterSiloRequest(name=name)
        request.token_lifetime.FromSeconds(3600)
        token = self.admin(lambda link: link.admin.RegisterSilo(request)).join_token
        home = self.silo(name).root
        joiner = self._mortal(f"{name}-join", "agent", "join", token, "--home", home)
        self.joiners.append(joiner)
        joiner.start()
        while status := joiner.wait():
            assert "Traceback" not in joiner.text(), joiner.text()
            if status == -signal.SIGKILL:
                self._look_at(joiner)
            else:
                assert "UNREACHABLE" in joiner.text(), joiner.text()
                self._await_restart()
            joiner.start()
        _furnish(home, name)

    def start_task(self) -> None:
        """Creates the task and starts it."""
        rounds = {"max_rounds": ROUNDS, "deadline": "1h", "grace": "1h", "quorum": len(SILOS)}
        definition = TaskDefinition.model_validate(
            {
                "name": TASK,
                "public_set": "wards",
                "labels": ["ill", "well"],
                "rounds": {**rounds, "stop_patience": 0},
            }
        )
        create = admin_pb2.CreateTaskRequest(definition=definition.to_proto())
        self.insist(lambda: self.admin(lambda link: link.admin.CreateTask(create)))
        start = admin_pb2.StartTaskRequest(name=TASK)
        self.insist(lambda: self.admin(lambda link: link.admin.StartTask(start)))

    def until_finished(self) -> None:
        """Waits until the task is over and every hospital has its model."""
        finished = task_pb2.TASK_STATUS_FINISHED
        request = admin_pb2.GetTaskRequest(name=TASK)
        self.until(
            "the end of the task",
            lambda: self.admin(lambda link: link.admin.GetTask(request)).task.status == finished,
        )
        for name in SILOS:
            self.until_told(name, "task_finished")

    def until_told(self, name: str, event: str) -> list[dict[str, Any]]:
        """Waits until a hospital's agent tells of something; all it has told of it."""
        events = partial(self.processes[f"{name}-agent"].events, event)
        return self.until(f"{event} of {name}", events)

    def admin(self, call: Callable[[AdminClient], Awaitable[T]]) -> T:
        """What an admin's call answers."""

        async def connected() -> T:
            async with admin_link(self.home) as link:
                return await call(link)

        return asyncio.run(connected())

    # -- what is on the disk -------------------------------------------------------------------------------

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """What the database says; what a dead coordinator left is asked in a copy, to leave it as it is."""
        if not self.coordinator.ended():
            return _asked(self.home, "ro", query, *values)
        with tempfile.TemporaryDirectory() as scratch:
            for path in self.home.glob("coordinator.db*"):
                shutil.copy(path, scratch)
            return _asked(Path(scratch), "rw", query, *values)

    def acts(self, act: str) -> int:
        """How often the coordinator's audit record says that this was done."""
        ((count,),) = self.rows("SELECT count(*) FROM audit WHERE act = ?", act)
        return int(count)

    def ballots(self) -> dict[tuple[int, str], str]:
        """Digest of every stored ballot by round and silo."""
        rows = self.rows("SELECT round, silo, digest FROM ballots WHERE task = ?", TASK)
        found = {(number, silo): digest for number, silo, digest in rows}
        assert len(found) == len(rows), "a silo was counted twice"
        return found

    def consensuses(self) -> list[tuple[int, str, int]]:
        """Number, digest and ballots of every round that has a consensus."""
        query = "SELECT number, consensus_digest, ballots FROM rounds WHERE task = ? AND closed_at NOT NULL ORDER BY number"
        return self.rows(query, TASK)

    def kept(self, silo: str, pattern: str) -> list[str]:
        """Names of files the trainer of `silo` keeps of the task."""
        return sorted(path.name for path in self.silo(silo).tasks.glob(f"*/{pattern}"))


def _asked(folder: Path, mode: str, query: str, *values: object) -> list[tuple[Any, ...]]:
    file = f"file:{folder / 'coordinator.db'}?mode={mode}"
    with closing(sqlite3.connect(file, uri=True)) as database:
        return database.execute(query, values).fetchall()


def _furnish(home: Path, name: str) -> None:
    """Private rows and silo.yaml, the same in every federation."""
    points = np.random.default_rng(list(name.encode())).normal(size=(24, 2))
    lines = [f"{a:.4f},{b:.4f},{'ill' if a + b > 0 else 'well'}" for a, b in points]
    (home / "data.csv").write_text("\n".join(["a,b,state", *lines]) + "\n")
    (home / "silo.yaml").write_text(
        "data: {path: data.csv, label: state}\n"
        f"model: {MODELS[name]}\n"
        "policy: {approve: within_limits, max_rounds: 100}\n"
    )


@contextmanager
def federation(folder: Path, *arguments: Any, **options: Any) -> Iterator[Federation]:
    """A federation whose coordinator serves; all of it ends with the block."""
    made = Federation(folder, *arguments, **options)
    try:
        made.serve()
        yield made
    finally:
        made.end()


def assert_records_are_whole(made: Federation) -> None:
    """Both ends' audit records verify; every ballot that left has a proven receipt."""
    assert consilium("audit", "verify", "--home", made.home).out.startswith("ok")
    for name in SILOS:
        told = consilium(
            "agent", "audit", "verify", "--home", made.silo(name).root, "--json"
        ).json()
        assert (told["whole"], told["ballots"]) == (True, ROUNDS), told
        assert told["unproven"] == told["without_receipt"] == [], told


def assert_as_if_nothing_happened(made: Federation, reference: Federation) -> None:
    """The same ballots, counted once, and the same consensus as in a federation that nobody disturbed."""
    assert made.ballots() == reference.ballots()
    assert made.consensuses() == reference.consensuses()
    everyone = {(number, name) for number in range(1, ROUNDS + 1) for name in SILOS}
    assert made.ballots().keys() == everyone
    assert [(number, ballots) for number, _, ballots in made.consensuses()] == [
        (number, len(SILOS)) for number in range(1, ROUNDS + 1)
    ]
    once = {"public_set_published": 1, "task_created": 1, "task_started": 1}
    once |= {"ballot_accepted": len(everyone), "consensus_published": ROUNDS}
    once |= {"member_joined": 1 + len(SILOS)}
    assert {act: made.acts(act) for act in once} == once
    for name in SILOS:
        assert made.kept(name, "model.joblib") == ["model.joblib"]
