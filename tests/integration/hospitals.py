"""A federation of real processes whose private side is played by the test: coordinator and agents are real."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import grpc
from patience import LEASE, PATIENCE
from service import free_ports

from coordinator.api.translation import duration
from coordinator.cli.connection import AdminClient, admin_link
from coordinator.settings import CoordinatorHome
from coordinator.store import Store
from wire.ballot import BallotShape, Encoding, pack
from wire.consilium.v1 import admin_pb2, trainer_pb2, trainer_pb2_grpc
from wire.identity.files import IdentityFiles
from wire.identity.identity import Role
from wire.net.enrolment import join
from wire.task.definition import TaskDefinition

TASK = "flu"
_SHIFTED_CLOCK = Path(__file__).with_name("shifted_clock")
ROWS = 24
T = TypeVar("T")


def consilium(*arguments: object) -> list[str]:
    """A command line of `consilium`."""
    return [sys.executable, "-c", "from wire.runtime.cli import main; main()", *map(str, arguments)]


def until(condition: Callable[[], T], what: str) -> T:
    """What `condition` gives as soon as it is something."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError(f"waited in vain for {what}")


class Trainer(trainer_pb2_grpc.TrainerServiceServicer):
    """The private side: always votes for the first class, after `seconds` of training."""

    def __init__(self, exchange: Path, seconds: float = 0.3) -> None:
        exchange.mkdir(parents=True, exist_ok=True)
        self._seconds = seconds
        self.voted: set[int] = set()
        self._server = grpc.server(ThreadPoolExecutor(2))
        trainer_pb2_grpc.add_TrainerServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{exchange / 'trainer.sock'}")
        self._server.start()

    def Describe(self, request: Any, context: Any) -> trainer_pb2.DescribeResponse:
        return trainer_pb2.DescribeResponse(version="0", isolation=trainer_pb2.ISOLATION_CONTAINER)

    def Propose(
        self, request: trainer_pb2.ProposeRequest, context: Any
    ) -> trainer_pb2.ProposeResponse:
        digest = TaskDefinition.from_proto(request.definition).digest
        return trainer_pb2.ProposeResponse(task_digest=digest)

    def Prepare(
        self, request: trainer_pb2.PrepareRequest, context: Any
    ) -> trainer_pb2.PrepareResponse:
        digest = TaskDefinition.from_proto(request.definition).digest
        return trainer_pb2.PrepareResponse(task_digest=digest)

    def Vote(self, request: trainer_pb2.VoteRequest, context: Any) -> trainer_pb2.VoteResponse:
        time.sleep(self._seconds)
        self.voted.add(request.round)
        ballot = pack([0] * ROWS, BallotShape(ROWS, 2, Encoding.INDEX))
        return trainer_pb2.VoteResponse(encoding=Encoding.INDEX.to_proto(), data=ballot)

    def Finish(self, request: Any, context: Any) -> trainer_pb2.FinishResponse:
        return trainer_pb2.FinishResponse()

    def stop(self) -> None:
        self._server.stop(0).wait()


@dataclass
class Hospital:
    """A silo: its folder, its agent's process, its private side."""

    home: Path
    process: subprocess.Popen[bytes]
    trainer: Trainer

    @property
    def files(self) -> IdentityFiles:
        return IdentityFiles.load(self.home / "identity")

    @property
    def log(self) -> list[dict[str, Any]]:
        text = (self.home / "agent.log").read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [entry for entry in self.log if entry["event"] == name]


@dataclass
class Federation:
    """A coordinator's process and everyone who joined it; ends every process it started."""

    folder: Path
    options: tuple[object, ...] = ()
    clock: Path | None = None
    """File with the seconds that every process adds to the time; see `shifted_clock`."""
    hospitals: dict[str, Hospital] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Federation:
        ports = free_ports(3)
        self.home = CoordinatorHome(self.folder / "coordinator")
        self.metrics_port = ports[2]
        flags = ("--port", "--enrolment-port", "--metrics-port")
        self.run(
            *("coordinator", "init", "--host", "localhost", "--listen", "127.0.0.1"),
            *("--lease", LEASE, *self.options),
            *(part for pair in zip(flags, ports, strict=True) for part in pair),
        )
        try:
            self.coordinator = self._start("coordinator", "serve", "--home", self.home.root)
            for port in ports:
                until(lambda port=port: _listens(port), f"port {port}")
            self.store = Store(self.home.database_url(self.home.settings()))
            self._stack.callback(self.store.close)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *reason: object) -> None:
        self._stack.close()

    def run(self, *arguments: object, status: int = 0) -> str:
        """A command of the admin or the operator; what it printed."""
        command = consilium(*arguments, "--home", self.home.root)
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, env=self._environment()
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def administer(self, act: Callable[[AdminClient], Awaitable[T]]) -> T:
        """Something an admin does, as commands do it."""

        async def call() -> T:
            async with admin_link(self.home.root) as link:
                return await act(link)

        return asyncio.run(call())

    def token(self, name: str) -> str:
        request = admin_pb2.RegisterSiloRequest(
            name=name, token_lifetime=duration(timedelta(hours=1))
        )
        return self.administer(lambda link: link.admin.RegisterSilo(request)).join_token

    def join(self, name: str, token: str = "") -> IdentityFiles:
        """Redeems a token, of `name` and made now unless it is given."""
        folder = self.folder / name / "identity"
        token = token or self.token(name)
        return asyncio.run(join(token, folder, lambda: datetime.now(UTC))).files

    def open(self, name: str) -> Hospital:
        """A hospital that has joined and whose agent runs."""
        home = self.folder / name
        self.join(name)
        # A Unix socket's path must be short; pytest's folders are not.
        exchange = Path(self._stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        (home / "exchange").symlink_to(exchange)
        trainer = Trainer(exchange)
        self._stack.callback(trainer.stop)
        process = self._start("agent", "relay", "--home", home, log=home / "agent.log")
        self.hospitals[name] = Hospital(home, process, trainer)
        return self.hospitals[name]

    def start_task(self) -> None:
        """Rounds without end for the hospitals that are open."""
        table = self.folder / "public.csv"
        table.write_text("age\n" + "\n".join(map(str, range(ROWS))) + "\n")
        self.run("public-set", "add", "people", table)
        definition = TaskDefinition.model_validate(
            {
                "name": TASK,
                "public_set": "people",
                "labels": ["ill", "well"],
                "silos": sorted(self.hospitals),
                "rounds": {
                    "max_rounds": 1000,
                    "deadline": "10h",
                    "grace": "10h",
                    "quorum": len(self.hospitals),
                    "stop_patience": 0,
                },
            }
        )
        create = admin_pb2.CreateTaskRequest(definition=definition.to_proto())
        self.administer(lambda link: link.admin.CreateTask(create))
        start = admin_pb2.StartTaskRequest(name=TASK)
        self.administer(lambda link: link.admin.StartTask(start))

    @property
    def rounds(self) -> int:
        """How many are closed."""
        return len(self.store.tasks.history(TASK))

    def await_rounds(self, count: int) -> None:
        """Returns once `count` more are closed."""
        wanted = self.rounds + count
        until(lambda: self.rounds >= wanted, f"round {wanted}")

    def assert_nothing_was_lost(self) -> None:
        """Every round was closed by the votes of all; every agent is the process it was, never cut off."""
        everyone = tuple(sorted(self.hospitals))
        history = self.store.tasks.history(TASK)
        assert {tuple(sorted(closed.voted)) for closed in history} == {everyone}
        assert [closed.number for closed in history] == list(range(1, len(history) + 1))
        for hospital in self.hospitals.values():
            assert hospital.process.poll() is None
            assert len(hospital.events("connected")) == 1
            assert not hospital.events("disconnected")
            assert not hospital.events("task_delayed")
            assert {closed.number for closed in history} <= hospital.trainer.voted

    def holders(self, role: Role) -> dict[str, set[str]]:
        """Fingerprints of the certificates that are good, by the member's name."""
        found: dict[str, set[str]] = {}
        for held in self.store.outstanding.certificates(datetime.now(UTC)):
            if held.role is role:
                found.setdefault(held.name, set()).add(held.fingerprint)
        return found

    def _start(self, *arguments: object, log: Path | None = None) -> subprocess.Popen[bytes]:
        log = log or self.folder / "coordinator.log"
        written = self._stack.enter_context(log.open("wb"))
        process = subprocess.Popen(
            consilium(*arguments), stdout=written, stderr=written, env=self._environment()
        )
        self._stack.callback(_end, process)
        return process

    def _environment(self) -> dict[str, str]:
        environment = {name: value for name, value in os.environ.items() if "proxy" not in name}
        if self.clock is not None:
            path = [str(_SHIFTED_CLOCK), *filter(None, [environment.get("PYTHONPATH")])]
            environment |= {
                "CONSILIUM_TEST_CLOCK": str(self.clock),
                "PYTHONPATH": os.pathsep.join(path),
            }
        return environment


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
