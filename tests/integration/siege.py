"""A coordinator process under siege: two honest silos keep voting while a test attacks.

All traffic stays on 127.0.0.1. The honest silos run on a thread of their own; whatever the attack does, their
rounds must go on closing with the consensus they agreed on, and the coordinator must not grow.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import grpc.aio
import numpy as np
import yaml
from http2 import Peer, tls_context
from patience import PATIENCE, limit
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from service import eventually, free_ports

from coordinator.cli.connection import AdminClient, admin_link
from coordinator.cli.coordinator import init
from coordinator.cli.public_set import add
from coordinator.pki.authority import Authority
from coordinator.settings import Rate
from wire.ballot import BallotShape, digest, pack
from wire.consilium.v1 import admin_pb2, ballot_pb2, rounds_pb2, rounds_pb2_grpc, task_pb2
from wire.errors import RATE_LIMITED, Refusal
from wire.identity.files import IdentityFiles
from wire.identity.identity import Role
from wire.net.channels import secure_channel
from wire.net.enrolment import join
from wire.task.definition import TaskDefinition

T = TypeVar("T")

ROWS = 1003
"""No multiple of eight, so that ballots have padding."""
LABELS = ("well", "ill", "unclear")
TASK = "siege"
HONEST = ("north", "south")
SILENCE = HANDSHAKE = limit(3.0)
"""`limits` of the besieged coordinator, short so that tests are."""
CALLS, RENEWALS, ENROLMENTS = (
    Rate(per_second=20, burst=400),
    Rate(per_second=0.05, burst=20),
    Rate(per_second=2, burst=20),
)
"""Its rates: refilled so slowly that a flood is one on any machine."""
GROWTH_MIB = 64
_PACE_SECONDS = 0.2


def votes(number: int) -> np.ndarray:
    """What both honest silos vote in a round, and hence its consensus."""
    return ((np.arange(ROWS) * 7 + number) % len(LABELS)).astype(np.int32)


def ballot(state: task_pb2.TaskState) -> tuple[ballot_pb2.BallotHeader, bytes]:
    """An honest ballot for the open round of a task."""
    definition = TaskDefinition.from_proto(state.definition)
    data = pack(votes(state.open_round.number), definition.shape)
    header = ballot_pb2.BallotHeader(
        task=definition.name,
        task_digest=state.digest,
        round=state.open_round.number,
        encoding=definition.encoding.to_proto(),
        size_bytes=len(data),
        digest=digest(data),
    )
    return header, data


def parts(header: ballot_pb2.BallotHeader, *data: bytes) -> list[rounds_pb2.CastBallotRequest]:
    """The messages of an upload."""
    return [
        rounds_pb2.CastBallotRequest(header=header),
        *(rounds_pb2.CastBallotRequest(data=piece) for piece in data),
    ]


@dataclass
class HonestSilo:
    """Watches, sends heartbeats and votes; notes everything that went wrong."""

    identity: IdentityFiles
    address: str
    rounds: int = 0
    slowest_heartbeat: float = 0.0
    troubles: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Until cancelled."""
        async with secure_channel(self.address, self.identity) as channel:
            stub = rounds_pb2_grpc.RoundsServiceStub(channel)
            request = rounds_pb2.WatchRequest(instance=self.identity.name, agent_version="test")
            watch = stub.Watch(request)
            # The lease is ours from here on.
            await watch.initial_metadata()
            await asyncio.gather(self._vote(watch, stub), self._beat(stub))

    async def _vote(
        self,
        watch: grpc.aio.UnaryStreamCall[rounds_pb2.WatchRequest, rounds_pb2.WatchResponse],
        stub: rounds_pb2_grpc.RoundsServiceStub,
    ) -> None:
        try:
            async for response in watch:
                state = response.task
                if state.definition.name != TASK or not state.HasField("open_round"):
                    continue
                if self.identity.name in state.open_round.voted:
                    continue
                await asyncio.sleep(_PACE_SECONDS)
                await stub.CastBallot(iter(parts(*ballot(state))), timeout=PATIENCE)
                self.rounds += 1
        except grpc.aio.AioRpcError as error:
            self.troubles.append(f"watch or vote: {error.code()} {error.details()}")

    async def _beat(self, stub: rounds_pb2_grpc.RoundsServiceStub) -> None:
        request = rounds_pb2.HeartbeatRequest(instance=self.identity.name)
        while True:
            began = time.monotonic()
            try:
                await stub.Heartbeat(request, timeout=PATIENCE)
            except grpc.aio.AioRpcError as error:
                self.troubles.append(f"heartbeat: {error.code()} {error.details()}")
            self.slowest_heartbeat = max(self.slowest_heartbeat, time.monotonic() - began)
            await asyncio.sleep(_PACE_SECONDS)


class Siege:
    """The coordinator process, its honest silos, and what an attacker needs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "coordinator"
        self.port, self.enrolment_port, self.metrics_port = free_ports(3)
        init(
            home=self.home,
            host=["localhost"],
            listen="127.0.0.1",
            port=self.port,
            enrolment_port=self.enrolment_port,
            metrics_port=self.metrics_port,
        )
        settings_file = self.home / "coordinator.yaml"
        settings = yaml.safe_load(settings_file.read_text())
        settings["limits"] |= {"silence": SILENCE, "handshake": HANDSHAKE}
        rates = {"calls": CALLS, "renewals": RENEWALS, "enrolment": ENROLMENTS}
        settings["limits"] |= {name: rate.model_dump() for name, rate in rates.items()}
        settings_file.write_text(yaml.safe_dump(settings))
        self.address = f"localhost:{self.port}"
        self._log = (folder / "coordinator.log").open("wb")
        self._process: subprocess.Popen[bytes] | None = None
        self._attackers = 0
        self.honest: list[HonestSilo] = []
        self.measured: list[str] = []

    # -- the process ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Serves, publishes a set, lets the honest silos join and starts their task."""
        command = "from wire.runtime.cli import main; main()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", command, "coordinator", "serve", "--home", str(self.home)],
            stdout=self._log,
            stderr=self._log,
        )
        eventually("coordinator_ready", lambda: "coordinator_ready" in self.log() or self._dead())
        np.save(self.folder / "scans.npy", np.arange(ROWS, dtype=np.uint8))
        add("scans", self.folder / "scans.npy", home=self.home)
        for name in HONEST:
            self.honest.append(HonestSilo(self.join(name), self.address))
        self.create_task(TASK, HONEST, rounds=100_000)

    def stop(self) -> None:
        """SIGTERM; it must still know how to end."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            assert self._process.wait(PATIENCE) == 0, self.log()[-3000:]
        finally:
            self._process.kill()
            self._process.wait()
            self._log.close()

    def log(self) -> str:
        """Everything the coordinator said."""
        return Path(self._log.name).read_text(errors="replace")

    def _dead(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the coordinator ended:\n{self.log()[-3000:]}")
        return False

    def memory_mib(self, key: str = "VmRSS") -> float:
        """Resident memory of the process; `VmHWM` is its peak since the last `forget_peak`."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return next(
            int(line.split()[1]) / 1024
            for line in status.splitlines()
            if line.startswith(f"{key}:")
        )

    def forget_peak(self) -> None:
        """Sets VmHWM to what is resident now."""
        assert self._process is not None
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")

    def open_files(self) -> int:
        """File descriptors the process holds."""
        assert self._process is not None
        return len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))

    def counted(self, metric: str, **labels: str) -> float:
        """One sample of the metrics page, 0 if it is not there."""
        return sum(s.value for s in self._samples(metric) if s.labels == labels)

    def refused(self, code: str) -> float:
        """How many calls were refused with a code."""
        return self.counted("consilium_refusals_total", code=code)

    def refusals(self) -> float:
        """How many calls were refused in all."""
        return sum(sample.value for sample in self._samples("consilium_refusals_total"))

    def handshakes(self, reason: str) -> float:
        """How many handshakes failed for a reason."""
        return self.counted("consilium_tls_handshakes_refused_total", reason=reason)

    # -- people -------------------------------------------------------------------------------------------

    @property
    def authority(self) -> Authority:
        """The consortium's own key: for certificates nobody should ever get."""
        return Authority.load(self.home / "authority")

    def admin(self, call: Callable[[AdminClient], Awaitable[T]]) -> T:
        """What an admin's call answers."""

        async def connected() -> T:
            async with admin_link(self.home) as link:
                return await call(link)

        return asyncio.run(connected())

    def token(self, name: str) -> str:
        """A join token."""
        request = admin_pb2.RegisterSiloRequest(name=name)
        request.token_lifetime.FromSeconds(600)
        return self.admin(lambda link: link.admin.RegisterSilo(request)).join_token

    def join(self, name: str) -> IdentityFiles:
        """A silo's identity, got by real enrolment."""
        line, folder = self.token(name), self.folder / name

        def enrolled() -> IdentityFiles | None:
            try:
                return asyncio.run(join(line, folder, lambda: datetime.now(UTC))).files
            except Refusal as refusal:
                # An earlier test may have used up what this address may call.
                if not refusal.is_a(RATE_LIMITED):
                    raise
                return None

        return eventually(f"{name} joined", enrolled)

    def attacker(self) -> IdentityFiles:
        """A member like any other, with evil intentions and a budget of calls of its own."""
        self._attackers += 1
        return self.join(f"mallory-{self._attackers}")

    def admin_files(self) -> IdentityFiles:
        """The first admin's identity."""
        return IdentityFiles.load(self.home / "admin", Role.ADMIN)

    def peer(self, files: IdentityFiles | None, port: int | None = None) -> Peer:
        """A hand-made HTTP/2 connection."""
        context = tls_context(files, self.authority.certificate_pem)
        return Peer(port or self.port, context)

    # -- tasks --------------------------------------------------------------------------------------------

    def create_task(
        self, name: str, silos: tuple[str, ...], rounds: int = 1, quorum: int = 2
    ) -> task_pb2.TaskState:
        """A started task on the public set."""
        definition = TaskDefinition.model_validate(
            {
                "name": name,
                "public_set": "scans",
                "labels": LABELS,
                "silos": silos,
                "rounds": {
                    "max_rounds": rounds,
                    "deadline": "1h",
                    "grace": "1h",
                    "quorum": quorum,
                    "stop_patience": 0,
                },
            }
        )
        request = admin_pb2.CreateTaskRequest(definition=definition.to_proto())
        self.admin(lambda link: link.admin.CreateTask(request))
        started = admin_pb2.StartTaskRequest(name=name)
        return self.admin(lambda link: link.admin.StartTask(started)).task

    def task(self, name: str = TASK) -> admin_pb2.GetTaskResponse:
        """A task and its closed rounds."""
        return self.admin(lambda link: link.admin.GetTask(admin_pb2.GetTaskRequest(name=name)))

    # -- the siege ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def unshaken(self, attack: str, growth_mib: float = GROWTH_MIB) -> Iterator[None]:
        """The block is an attack; the federation must not notice it."""
        for silo in self.honest:
            silo.slowest_heartbeat = 0.0
        before = len(self.task().history)
        self.forget_peak()
        resident, began = self.memory_mib(), time.monotonic()
        yield
        lasted = time.monotonic() - began
        peak, left = self.memory_mib("VmHWM"), self.memory_mib()
        during = len(self.task().history)
        history = eventually("two more rounds", lambda: self._since(before, during - before + 2))
        slowest = max(silo.slowest_heartbeat for silo in self.honest)
        self.measured.append(
            f"{attack:42} RSS {resident:6.1f} MiB, peak {peak - resident:+6.1f}, after "
            f"{left - resident:+6.1f}; {during - before:3d} rounds in {lasted:5.1f} s; "
            f"slowest heartbeat {slowest * 1000:5.0f} ms"
        )
        troubles = [trouble for silo in self.honest for trouble in silo.troubles]
        assert not troubles, troubles
        shape = BallotShape(
            ROWS, len(LABELS), TaskDefinition.from_proto(self.task().task.definition).encoding
        ).as_index()
        for closed in history:
            consensus = closed.consensus
            assert consensus.digest == digest(pack(votes(consensus.round), shape))
            assert (consensus.ballots, sorted(closed.voted)) == (2, sorted(HONEST))
        assert peak - resident < growth_mib, self.measured[-1]
        assert slowest < limit(10), self.measured[-1]

    def _samples(self, metric: str) -> list[Sample]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics") as page:
            families = list(text_string_to_metric_families(str(page.read(), "utf-8")))
        return [s for family in families for s in family.samples if s.name == metric]

    def _since(self, before: int, at_least: int) -> list[admin_pb2.ClosedRound] | None:
        history = self.task().history[before:]
        return list(history) if len(history) >= at_least else None


@contextlib.contextmanager
def siege(folder: Path) -> Iterator[Siege]:
    """A running coordinator whose honest silos vote until the block ends."""
    made = Siege(folder)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="honest-silos")
    thread.start()
    running = []
    try:
        made.start()
        running = [asyncio.run_coroutine_threadsafe(s.run(), loop) for s in made.honest]
        eventually("a first round", lambda: len(made.task().history) or None)
        yield made
    finally:
        print("\n".join(made.measured))
        for honest in running:
            honest.cancel()
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(_settled(), loop).result(PATIENCE)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        made.stop()


async def _settled() -> None:
    """Returns when the cancelled silos have closed their channels."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    await asyncio.gather(*others, return_exceptions=True)
