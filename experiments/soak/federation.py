"""The federation under test: a coordinator, silos behind a relay that can fail, and the task they vote in."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, cast

import numpy as np

from coordinator.cli.connection import AdminClient, admin_link
from coordinator.settings import CoordinatorHome
from experiments.demo.processes import free_ports, until
from experiments.soak.ballots import CLASSES, silo_name
from experiments.soak.processes import (
    CONSILIUM,
    Service,
    Services,
    SoakFailed,
    consilium,
    launch,
    listens,
)
from experiments.soak.relay import Disruption
from experiments.soak.schedule import Fault, FaultKind
from silo_agent.shared.home import SiloHome
from wire.consilium.v1 import admin_pb2
from wire.errors import RATE_LIMITED, Refusal
from wire.net.enrolment import join
from wire.task.definition import TaskDefinition

TASK = "soak"
ROWS = 500
_LEASE = "3s"
_START_SECONDS = 900.0
_SOCKET_CHARACTERS = 100


class RelayProcess:
    """The process that relays between silos and coordinator."""

    def __init__(self, folder: Path, coordinator: int, silos: int) -> None:
        module = ("-m", "experiments.soak.relay", str(coordinator), str(silos))
        with (folder / "relay.log").open("ab") as errors:
            self._process = launch(
                folder, module, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        self._commands = cast("IO[bytes]", self._process.stdin)
        self._answers = cast("IO[bytes]", self._process.stdout)
        self.ports: list[int] = json.loads(self._read())

    def disrupt(self, silo: int, disruption: Disruption, seconds: float) -> None:
        """Disrupts a silo's connections for `seconds`."""
        text = json.dumps({"silo": silo, "disruption": disruption, "seconds": seconds})
        self._commands.write(text.encode() + b"\n")
        self._commands.flush()

    def end(self) -> dict[str, int]:
        """Ends the relay; what it counted."""
        self._commands.close()
        counts: dict[str, int] = json.loads(self._read())
        self._process.wait()
        return counts

    def kill(self) -> None:
        """Kills it if it still runs."""
        self._process.kill()
        self._process.wait()

    def _read(self) -> bytes:
        if not (line := self._answers.readline()):
            raise SoakFailed("The relay between silos and coordinator ended.", "See relay.log.")
        return line


@dataclass
class Federation:
    """Everything that runs."""

    folder: Path
    home: Path
    services: Services
    coordinator: Service
    trainers: Service
    agents: list[Service]
    relay: RelayProcess

    async def inject(self, fault: Fault) -> None:
        """Makes the fault happen; returns when a killed process is started again."""
        await asyncio.sleep(fault.after)
        match fault.kind:
            case FaultKind.COORDINATOR:
                await self.coordinator.kill_and_restart(fault.seconds)
            case FaultKind.TRAINERS:
                await self.trainers.kill_and_restart(fault.seconds)
            case FaultKind.AGENT:
                await self.agents[fault.silo or 0].kill_and_restart(fault.seconds)
            case FaultKind.RESET:
                self._disrupt(fault, Disruption.RESET)
            case FaultKind.STALL:
                self._disrupt(fault, Disruption.STALL)
            case FaultKind.BLACKHOLE:
                self._disrupt(fault, Disruption.BLACKHOLE)
            case FaultKind.SLOW:
                self._disrupt(fault, Disruption.SLOW)

    def _disrupt(self, fault: Fault, disruption: Disruption) -> None:
        self.relay.disrupt(fault.silo or 0, disruption, fault.seconds)

    def check(self) -> None:
        """SoakFailed if a process has ended that nobody killed."""
        for service in self.services.all:
            service.check()


@asynccontextmanager
async def federation(
    folder: Path, silos: int, tell: Callable[[str], None]
) -> AsyncIterator[Federation]:
    """A consortium whose silos are all connected; every process ends with the block."""
    if len(str(SiloHome(folder / silo_name(silos)).socket)) > _SOCKET_CHARACTERS:
        raise SoakFailed(
            f"{folder} is too long a name: Unix sockets are to lie in it.",
            "Let TMPDIR or --keep name a shorter one.",
        )
    async with Services(folder) as services:
        tell("starting the coordinator")
        home, port = await _coordinator(folder, services)
        relay = RelayProcess(folder, port, silos)
        try:
            table = folder / "public.npy"
            np.save(table, np.arange(ROWS, dtype=np.float32).reshape(ROWS, 1))
            await run_checked(folder, "public-set", "add", "public", table, "--home", home)
            tell("enrolling silos")
            async with admin_link(home) as link:
                for number in range(silos):
                    await _enrol(link, folder, number, relay.ports[number])
            tell("starting trainers and agents")
            trainers = services.serve("trainers", "-m", "experiments.soak.trainers", folder, silos)
            agents = [
                services.serve(
                    f"{silo_name(number)}-agent",
                    *CONSILIUM,
                    *("agent", "relay", "--home", folder / silo_name(number)),
                )
                for number in range(silos)
            ]
            running = Federation(folder, home, services, services.all[0], trainers, agents, relay)
            await _until_connected(running, silos)
            yield running
        finally:
            relay.kill()


async def start_task(home: Path, silos: int, rounds: int) -> TaskDefinition:
    """Creates and starts the task: a round closes when every silo has voted, however long that takes."""
    definition = TaskDefinition.model_validate(
        {
            "name": TASK,
            "public_set": "public",
            "labels": [f"class {number}" for number in range(CLASSES)],
            "silos": [silo_name(number) for number in range(silos)],
            "rounds": {
                "max_rounds": rounds,
                "deadline": "1h",
                "grace": "1h",
                "quorum": silos,
                "stop_patience": 0,
            },
        }
    )
    async with admin_link(home) as link:
        create = admin_pb2.CreateTaskRequest(definition=definition.to_proto())
        created = await link.admin.CreateTask(create)
        await link.admin.StartTask(admin_pb2.StartTaskRequest(name=TASK))
    return TaskDefinition.from_proto(created.task.definition)


async def run_checked(folder: Path, *arguments: object) -> str:
    """What a command printed; SoakFailed if it failed."""
    done = await consilium(folder, *arguments)
    if done.returncode != 0:
        shown = " ".join(map(str, arguments))
        raise SoakFailed(
            f"`consilium {shown}` ended with status {done.returncode}: {done.stdout}{done.stderr}"
        )
    return done.stdout


async def _coordinator(folder: Path, services: Services) -> tuple[Path, int]:
    """Its folder, and the port that the relay calls."""
    home = folder / "coordinator"
    port, *others = free_ports(3)
    await run_checked(
        folder,
        *("coordinator", "init", "--home", home, "--lease", _LEASE),
        *("--host", "localhost", "--listen", "127.0.0.1", "--port", port),
        *("--enrolment-port", others[0], "--metrics-port", others[1]),
    )
    service = services.serve("coordinator", *CONSILIUM, "coordinator", "serve", "--home", home)

    def ready() -> bool:
        service.check()
        return all(map(listens, (port, *others)))

    await until(ready)
    return home, CoordinatorHome(home).settings().port


async def _enrol(link: AdminClient, folder: Path, number: int, port: int) -> None:
    """Joins one silo as hospitals do, then has it call the relay instead of the coordinator."""
    request = admin_pb2.RegisterSiloRequest(name=silo_name(number))
    request.token_lifetime.FromSeconds(600)
    token = (await link.admin.RegisterSilo(request)).join_token
    home = SiloHome(folder / silo_name(number))
    while True:
        try:
            enrolled = await join(token, home.identity, lambda: datetime.now(UTC))
            break
        except Refusal as refusal:
            # Everyone joins from this one address.
            if not refusal.is_a(RATE_LIMITED):
                raise
            await asyncio.sleep(0.5)
    replace(enrolled.files, coordinator_address=f"localhost:{port}").store()


async def _until_connected(running: Federation, silos: int) -> None:
    async with admin_link(running.home) as link, asyncio.timeout(_START_SECONDS):
        while True:
            running.check()
            found = await link.admin.ListSilos(admin_pb2.ListSilosRequest())
            if sum(silo.connected for silo in found.silos) == silos:
                return
            await asyncio.sleep(0.2)
