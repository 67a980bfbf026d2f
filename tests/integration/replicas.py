"""Coordinator replicas on one PostgreSQL: real processes that may be killed, frozen and started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import yaml
from patience import LEASE, PATIENCE
from prometheus_client.parser import text_string_to_metric_families
from service import eventually, free_ports

from coordinator.cli.connection import AdminClient, admin_link
from silo_agent.agent.coordinator_client import CoordinatorClient
from wire.ballot import digest, pack
from wire.consilium.v1 import admin_pb2, ballot_pb2, task_pb2
from wire.errors import ConsiliumError
from wire.identity.files import IdentityFiles
from wire.net.enrolment import join
from wire.runtime.crash_points import VARIABLE
from wire.task.definition import TaskDefinition

T = TypeVar("T")

ROWS = 61
LABELS = ("ill", "unclear", "well")
_SHARED = ("authority", "server", "public-sets")
# Started by way of this, a process dies with the thread that started it: start it from the main thread.
_DIE_WITH_PARENT = (
    "import ctypes, os, signal, sys;"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL);"
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def consilium(*arguments: object, status: int = 0) -> str:
    """Runs a command to its end; what it printed."""
    done = subprocess.run(_command(*arguments), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


class Process:
    """One `consilium` process with its log; it ends with the test."""

    def __init__(self, log: Path, *arguments: object) -> None:
        self.log = log
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, **environment: str) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-ISc", _DIE_WITH_PARENT, *_command(*self._arguments)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=os.environ | environment,
            )

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        """How it ended: negative for a signal."""
        assert self._process is not None
        return self._process.wait(PATIENCE)

    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def events(self, name: str) -> list[dict[str, Any]]:
        """Its log lines about one kind of event, oldest first."""
        text = self.log.read_text() if self.log.exists() else ""
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        return [line for line in lines if line.get("event") == name]


class Replica(Process):
    """A coordinator with ports of its own; what replicas must share lies in the first one's folder."""

    def __init__(self, home: Path, ports: list[int]) -> None:
        self.home, self.ports = home, ports
        super().__init__(home.with_suffix(".log"), "coordinator", "serve", "--home", home)

    def serve(self, crash_at: str = "") -> None:
        """Starts it and waits until it answers."""
        before = len(self.events("coordinator_ready"))
        self.start(**{VARIABLE: crash_at})

        def ready() -> bool:
            assert not self.ended(), self.log.read_text()
            return len(self.events("coordinator_ready")) > before

        eventually(f"{self.home.name} serves", ready)

    async def admin(self, call: Callable[[AdminClient], Awaitable[T]]) -> T:
        """What an admin's call to this replica answers."""
        async with admin_link(self.home) as link:
            return await call(link)

    def rounds_closed(self) -> float:
        """How many rounds this process has closed."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[2]}/metrics") as page:
            families = text_string_to_metric_families(str(page.read(), "utf-8"))
        samples = [sample for family in families for sample in family.samples]
        return sum(s.value for s in samples if s.name == "consilium_rounds_closed_total")


def first_replica(folder: Path, database: str) -> Replica:
    """A new consortium, made by the real command; it does not serve yet."""
    ports = free_ports(3)
    home = folder / "replica-1"
    flags = ("--port", "--enrolment-port", "--metrics-port")
    consilium(
        *("coordinator", "init", "--home", home, "--database", database, "--lease", LEASE),
        *("--host", "localhost", "--listen", "127.0.0.1"),
        *(part for pair in zip(flags, ports, strict=True) for part in pair),
    )
    return Replica(home, ports)


def further_replica(first: Replica, number: int) -> Replica:
    """Another one of the same consortium, as on another machine with the same volume; only ports differ."""
    home, ports = first.home.with_name(f"replica-{number}"), free_ports(3)
    home.mkdir()
    for name in _SHARED:
        (first.home / name).mkdir(exist_ok=True)
        (home / name).symlink_to(first.home / name)
    settings = yaml.safe_load((first.home / "coordinator.yaml").read_text())
    settings |= dict(zip(("port", "enrolment_port", "metrics_port"), ports, strict=True))
    (home / "coordinator.yaml").write_text(yaml.safe_dump(settings))
    admin = home / "admin"
    admin.mkdir(mode=0o700)
    for file in (first.home / "admin").iterdir():
        content = file.read_text().replace(f":{first.ports[0]}", f":{ports[0]}")
        (admin / file.name).write_text(content)
        (admin / file.name).chmod(file.stat().st_mode)
    return Replica(home, ports)


@contextmanager
def replicas(folder: Path, database: str) -> Iterator[tuple[Replica, Replica]]:
    """Two replicas that do not serve yet; they end with the block, and pytest shows their logs if it fails."""
    first = first_replica(folder, database)
    both = first, further_replica(first, 2)
    try:
        yield both
    finally:
        for replica in both:
            replica.end()
        for log in sorted(folder.glob("replica-*.log")):
            print(f"----- {log.name}\n{log.read_text()}")


def definition(rounds: int = 3, **policy: object) -> TaskDefinition:
    """A task that waits for everyone."""
    waits = {"deadline": "1h", "grace": "1h", "quorum": 2, "stop_patience": 0}
    policy = {"max_rounds": rounds, **waits, **policy}
    return TaskDefinition.model_validate(
        {"name": "trial", "public_set": "points", "labels": LABELS, "rounds": policy}
    )


def publish_points(replica: Replica) -> None:
    """The public set of every test."""
    path = replica.home.with_name("points.csv")
    points = np.random.default_rng(0).normal(size=(ROWS, 2))
    path.write_text("\n".join(["a,b", *(f"{a:.4f},{b:.4f}" for a, b in points)]) + "\n")
    consilium("public-set", "add", "points", path, "--home", replica.home)


async def start_task(replica: Replica, task: TaskDefinition) -> None:
    create = admin_pb2.CreateTaskRequest(definition=task.to_proto())
    await replica.admin(lambda link: link.admin.CreateTask(create))
    start = admin_pb2.StartTaskRequest(name=task.name)
    await replica.admin(lambda link: link.admin.StartTask(start))


async def token_from(replica: Replica, name: str) -> str:
    request = admin_pb2.RegisterSiloRequest(name=name)
    request.token_lifetime.FromSeconds(600)
    answer = await replica.admin(lambda link: link.admin.RegisterSilo(request))
    return answer.join_token


def scripted_ballot(silo: str, number: int, task: TaskDefinition) -> bytes:
    """What a silo votes in a round, the same in every run; silos disagree, so that ties occur."""
    rng = np.random.default_rng([number, *silo.encode()])
    return pack(rng.integers(0, len(LABELS), ROWS), task.shape)


class Voter:
    """A silo whose ballots are scripted; it talks to one replica as the agent does, and reconnects as it does."""

    def __init__(self, name: str, identity: IdentityFiles) -> None:
        self.name = name
        self.link = CoordinatorClient(identity)
        self.state = task_pb2.TaskState()
        self.heard: dict[int, str] = {}
        """Digest of every consensus it was told of, by round."""
        self.complaints: list[str] = []
        self._changed = asyncio.Condition()
        self._following = asyncio.create_task(self._follow())

    async def until(self, what: str, holds: Callable[[Voter], bool]) -> None:
        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait_for(lambda: holds(self)), PATIENCE)
            except TimeoutError:
                raise AssertionError(f"{self.name} never saw: {what}; {self.complaints}") from None

    async def until_open(self, number: int) -> None:
        await self.until(f"round {number}", lambda me: me.state.open_round.number == number)

    async def until_finished(self) -> None:
        await self.until("the end", lambda me: me.state.status == task_pb2.TASK_STATUS_FINISHED)

    async def until_told(self, code: str) -> None:
        await self.until(f"the refusal {code}", lambda me: code in me.complaints)

    async def cast(self, number: int) -> ballot_pb2.Receipt:
        """Casts this round's ballot, again and again until there is a receipt."""
        task = TaskDefinition.from_proto(self.state.definition)
        ballot = scripted_ballot(self.name, number, task)
        header = ballot_pb2.BallotHeader(
            task=task.name,
            task_digest=self.state.digest,
            round=number,
            encoding=task.encoding.to_proto(),
            size_bytes=len(ballot),
            digest=digest(ballot),
        )
        while True:
            try:
                return await self.link.cast(header, ballot)
            except ConsiliumError as error:
                await self._complain(error)
                await asyncio.sleep(0.1)

    async def close(self) -> None:
        self._following.cancel()
        with suppress(asyncio.CancelledError):
            await self._following
        await self.link.close()

    async def _follow(self) -> None:
        revision = 0
        while True:
            try:
                async for state in self.link.watch(self.name, revision, lambda: None):
                    assert state.revision > revision, "a revision was heard twice"
                    revision = state.revision
                    async with self._changed:
                        self.state = state
                        if state.HasField("consensus"):
                            self.heard[state.consensus.round] = state.consensus.digest
                        self._changed.notify_all()
            except ConsiliumError as error:
                await self._complain(error)
            await asyncio.sleep(0.1)

    async def _complain(self, error: ConsiliumError) -> None:
        async with self._changed:
            self.complaints.append(error.code)
            self._changed.notify_all()


@asynccontextmanager
async def voters(**homes: Replica) -> AsyncIterator[dict[str, Voter]]:
    """Silos that joined at the replica they are given with and watch it."""
    joined: dict[str, Voter] = {}
    try:
        for name, replica in homes.items():
            folder = replica.home.with_name(name)
            token = await token_from(replica, name)
            enrolled = await join(token, folder, lambda: datetime.now(UTC))
            joined[name] = Voter(name, enrolled.files)
        yield joined
    finally:
        for voter in joined.values():
            await voter.close()


def _command(*arguments: object) -> list[str]:
    return [sys.executable, "-c", "from wire.runtime.cli import main; main()", *map(str, arguments)]
