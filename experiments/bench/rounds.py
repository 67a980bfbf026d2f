"""What a round costs beyond training: a real coordinator, silos that train in no time, mTLS on loopback.

The coordinator is the product's own process. The silos are the product's own agents, many to a process, each
with a certificate, a channel and a lease of its own; only their trainers are simulated (`bench.agents`) and answer
at once. What is left between two closings of a round is the federation itself: watching, ballots, a write to
disk for each of them, tally, consensus, and the way back.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

import numpy as np

from coordinator.cli.connection import admin_link
from experiments.bench import Measurement
from experiments.bench.agents import agents, enrol
from wire.consilium.v1 import admin_pb2, task_pb2
from wire.task.definition import TaskDefinition

LIMITS_MS = {5: 100.0, 50: 500.0}
"""Promised overhead of a round by number of silos."""
_TASK = "bench"
_PATIENCE_SECONDS = 300.0


@dataclass(frozen=True)
class Overhead:
    """One federation's numbers: milliseconds between closings, bytes, and the coordinator's memory."""

    silos: int
    intervals_ms: Sequence[float]
    ballot_bytes: float
    wire_bytes: float
    idle_mib: float
    peak_mib: float

    def measurements(self) -> list[Measurement]:
        """The rows of the report."""
        what = f"{self.silos} silos"
        middle = median(self.intervals_ms)
        limit = LIMITS_MS.get(self.silos)
        overhead = f"round overhead, {what}, median"
        return [
            Measurement(overhead, middle, "ms")
            if limit is None
            else Measurement.at_most(overhead, middle, "ms", limit),
            Measurement(
                f"round overhead, {what}, 90th percentile",
                quantiles(self.intervals_ms, n=10)[-1],
                "ms",
            ),
            Measurement(f"ballot per silo and round, {what}", self.ballot_bytes, "B"),
            Measurement(f"both ways on the wire per silo and round, {what}", self.wire_bytes, "B"),
            Measurement(f"coordinator's memory before the task, {what}", self.idle_mib, "MiB"),
            Measurement(f"coordinator's peak memory, {what}", self.peak_mib, "MiB"),
        ]


def run(
    sizes: Sequence[int] = (5, 50),
    rows: int = 10_000,
    classes: int = 10,
    rounds: int = 20,
    tell: Callable[[str], None] = lambda doing: None,
) -> list[Measurement]:
    """Measures one federation per size, then compares the largest with the smallest; some 30 s.

    `tell` hears what is being done.
    """
    found = [measure_federation(silos, rows, classes, rounds, tell) for silos in sizes]
    least, most = found[0], found[-1]
    what = f"{most.silos} / {least.silos} silos"
    return [
        *(row for overhead in found for row in overhead.measurements()),
        Measurement(
            f"round overhead, {what}", median(most.intervals_ms) / median(least.intervals_ms), "×"
        ),
        Measurement(f"coordinator's peak memory, {what}", most.peak_mib / least.peak_mib, "×"),
    ]


def measure_federation(
    silos: int, rows: int, classes: int, rounds: int, tell: Callable[[str], None]
) -> Overhead:
    """One federation of `silos` silos that run `rounds` rounds as fast as they can."""
    definition = task_definition(silos, rows, classes, rounds)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        tell(f"{silos} silos: starting the coordinator")
        coordinator = stack.enter_context(_coordinator(folder))
        public = folder / "public.npy"
        np.save(public, np.arange(rows, dtype=np.float32).reshape(rows, 1))
        _consilium(folder, "public-set", "add", "public", str(public))
        tell(f"{silos} silos: joining")
        homes = asyncio.run(_enrol(folder, silos))
        idle = _memory_mib(coordinator.pid, "VmRSS")
        stack.enter_context(agents(homes, definition.shape))
        asyncio.run(_until_connected(folder, silos))
        tell(f"{silos} silos: running {rounds} rounds")
        sent = _loopback_bytes()
        history = asyncio.run(_run_task(folder, definition))
        # Every silo fetched the public set once: that is no cost of a round.
        sent = _loopback_bytes() - sent - silos * public.stat().st_size
        closings = [round_.closed_at.ToMicroseconds() / 1000 for round_ in history]
        ballots = sum(round_.consensus.ballots for round_ in history)
        if ballots != silos * rounds:
            raise RuntimeError(f"{ballots} ballots were counted in place of {silos * rounds}")
        return Overhead(
            silos=silos,
            intervals_ms=[after - before for before, after in pairwise(closings)],
            ballot_bytes=definition.shape.size_bytes,
            wire_bytes=sent / ballots,
            idle_mib=idle,
            peak_mib=_memory_mib(coordinator.pid, "VmHWM"),
        )


def task_definition(silos: int, rows: int, classes: int, rounds: int) -> TaskDefinition:
    """The task every silo votes in; it ends only with its last round."""
    return TaskDefinition.model_validate(
        {
            "name": _TASK,
            "public_set": "public",
            "rows": rows,
            "labels": [f"class {number}" for number in range(classes)],
            "rounds": {
                "max_rounds": rounds,
                "deadline": "1h",
                "grace": "1h",
                "quorum": silos,
                "stop_patience": 0,
            },
        }
    )


@contextmanager
def _coordinator(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A coordinator in a process of its own, ready to be called."""
    names = ("--port", "--enrolment-port", "--metrics-port")
    ports = [word for option in zip(names, _free_ports(), strict=True) for word in option]
    host = ("--host", "localhost", "--listen", "127.0.0.1")
    _consilium(folder, "coordinator", "init", *host, *ports)
    log = folder / "coordinator.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*_command(), "coordinator", "serve", "--home", str(folder / "coordinator")],
            stdout=output,
            stderr=output,
        )
    try:
        _until_ready(process, log)
        yield process
    finally:
        process.kill()
        process.wait()


def _until_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    while process.poll() is None:
        for line in log.read_text(encoding="utf-8").splitlines():
            if line.startswith("{") and json.loads(line)["event"] == "coordinator_ready":
                return
        time.sleep(0.05)
    raise RuntimeError(f"the coordinator ended: {log.read_text(encoding='utf-8')}")


def _free_ports() -> list[str]:
    """Three ports nobody listens on, all different because they are held together."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(3)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [str(probe.getsockname()[1]) for probe in probes]


def _command() -> list[str]:
    return [sys.executable, "-c", "from wire.runtime.cli import main; main()"]


def _consilium(folder: Path, *arguments: str) -> None:
    command = [*_command(), *arguments, "--home", str(folder / "coordinator")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


async def _enrol(folder: Path, silos: int) -> list[Path]:
    async with admin_link(folder / "coordinator") as link:
        return await enrol(link, folder, silos)


async def _until_connected(folder: Path, silos: int) -> None:
    async with admin_link(folder / "coordinator") as link, asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            found = await link.admin.ListSilos(admin_pb2.ListSilosRequest())
            if sum(silo.connected for silo in found.silos) == silos:
                return
            await asyncio.sleep(0.1)


async def _run_task(folder: Path, definition: TaskDefinition) -> Sequence[admin_pb2.ClosedRound]:
    """Creates and starts the task, waits for its end; polls seldom so as not to be measured too."""
    async with admin_link(folder / "coordinator") as link, asyncio.timeout(_PATIENCE_SECONDS):
        create = admin_pb2.CreateTaskRequest(definition=definition.to_proto())
        await link.admin.CreateTask(create)
        await link.admin.StartTask(admin_pb2.StartTaskRequest(name=_TASK))
        while True:
            found = await link.admin.GetTask(admin_pb2.GetTaskRequest(name=_TASK))
            if found.task.status == task_pb2.TASK_STATUS_FINISHED:
                return found.history
            await asyncio.sleep(0.5)


def _memory_mib(process: int, key: str) -> float:
    for line in Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc says no {key} of process {process}")


def _loopback_bytes() -> int:
    return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text(encoding="ascii"))
