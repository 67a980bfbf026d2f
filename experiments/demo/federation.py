"""One federation from the empty folder to five exported models, through the public commands and calls only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from coordinator.api.translation import duration
from coordinator.cli.connection import AdminClient, admin_link
from coordinator.settings import CoordinatorHome
from experiments.demo.hospitals import HOSPITALS, LABELS, Cohorts, Hospital, write_silo_files
from experiments.demo.live import Step, View
from experiments.demo.processes import DemoFailed, Processes, free_ports, until
from silo_agent.agent.audit.entries import AuditEntry, Direction
from silo_agent.agent.audit.recorder import read_entries
from silo_agent.agent.coordinator_client import CoordinatorClient
from silo_agent.agent.trainer_client import TrainerClient
from silo_agent.shared.home import SiloHome
from silo_agent.trainer.task_folder import find_task
from wire.ballot import Labels, unpack
from wire.consilium.v1 import admin_pb2, task_pb2, trainer_pb2
from wire.errors import ConfigurationError
from wire.identity.files import IdentityFiles
from wire.runtime.task_group import task_group
from wire.runtime.terminal import enum_word
from wire.task.definition import RoundPolicy, TaskDefinition

TASK = "breast-cancer"
PUBLIC_SET = "biopsies"

# A person watches: what takes longer than this is stuck.
_STAGE_SECONDS = 900.0
# Linux keeps the address of a Unix socket in 108 bytes, the last of them zero.
_SOCKET_PATH_BYTES = 107


@dataclass(frozen=True, eq=False)
class Round:
    """A closed round: what changed and the labels it published, one per public row."""

    round_number: int
    ballots: int
    churn: float
    seconds: float
    closed_by: str
    labels: Labels


@dataclass(frozen=True, eq=False)
class FederationRun:
    """What the federation left behind."""

    definition: TaskDefinition
    reason: str
    """Why the task ended, in the coordinator's words."""
    rounds: tuple[Round, ...]
    public_file: Path
    homes: dict[str, SiloHome]
    models: dict[str, Path]
    traffic: dict[str, tuple[AuditEntry, ...]]
    isolation: dict[str, str]
    """How each trainer is kept from the network: own namespace, container or none."""

    def bytes_moved(self, hospital: str, direction: Direction) -> int:
        """Payload that left or reached one hospital."""
        return sum(move.bytes for move in self.traffic[hospital] if move.direction is direction)


class Federation:
    """A coordinator and five hospitals in `folder`, each in its own processes."""

    def __init__(self, folder: Path, processes: Processes, view: View) -> None:
        self._coordinator = CoordinatorHome(folder / "coordinator")
        self._folder = folder
        self._processes = processes
        self._view = view
        self._homes = {one.name: SiloHome(folder / one.name) for one in HOSPITALS}
        self._isolation: dict[str, str] = {}
        longest = max(len(str(home.socket).encode()) for home in self._homes.values())
        if longest > _SOCKET_PATH_BYTES:
            raise ConfigurationError(
                f"The folder {folder} has too long a name for the trainers' Unix sockets.",
                f"Shorten it by {longest - _SOCKET_PATH_BYTES} bytes with `--keep` or $TMPDIR.",
            )

    async def run(self, cohorts: Cohorts, seed: int, max_rounds: int) -> FederationRun:
        """Makes the consortium, has the hospitals join and vote, exports what each has learned."""
        async with _in_time("making the consortium"):
            await self._make()
        async with admin_link(self._coordinator.root) as link:
            async with _in_time("setting up"):
                await self._set_up(link, cohorts, seed, max_rounds)
            async with _in_time("connecting the hospitals") as connecting:
                await self._follow(link, started=lambda: connecting.reschedule(None))
            async with _in_time("exporting the models"):
                models = await self._export()
            task = await link.admin.GetTask(admin_pb2.GetTaskRequest(name=TASK))
        definition = TaskDefinition.from_proto(task.task.definition)
        return FederationRun(
            definition=definition,
            reason=task.task.reason,
            rounds=await self._published(definition, task.history),
            public_file=self._coordinator.public_sets / definition.public_set,
            homes=self._homes,
            models=models,
            traffic={name: tuple(read_entries(home.agent)) for name, home in self._homes.items()},
            isolation=self._isolation,
        )

    async def _make(self) -> None:
        port, enrolment_port, metrics_port = free_ports(3)
        options = {
            "--home": self._coordinator.root,
            "--consortium": "demo",
            "--host": "localhost",
            "--listen": "127.0.0.1",
            "--port": port,
            "--enrolment-port": enrolment_port,
            "--metrics-port": metrics_port,
            "--lease": "6s",
        }
        words = [str(word) for option in options.items() for word in option]
        await self._processes.run("coordinator init", "coordinator", "init", *words)
        home = str(self._coordinator.root)
        serving = self._processes.serve("coordinator", "coordinator", "serve", "--home", home)
        await until(lambda: b"coordinator_ready" in serving.log.read_bytes())
        self._view.advance(Step.CONSORTIUM)

    async def _set_up(
        self, link: AdminClient, cohorts: Cohorts, seed: int, max_rounds: int
    ) -> None:
        async with task_group() as group:
            group.create_task(self._publish(link, cohorts, max_rounds))
            for hospital in HOSPITALS:
                group.create_task(self._admit(link, hospital, cohorts, seed))

    async def _publish(self, link: AdminClient, cohorts: Cohorts, max_rounds: int) -> None:
        """Publishes the rows without their labels and defines the task on them."""
        file = self._folder / "biopsies.parquet"
        cohorts.public.to_parquet(file)
        home = str(self._coordinator.root)
        await self._processes.run(
            "public-set add", "public-set", "add", PUBLIC_SET, str(file), "--home", home
        )
        definition = TaskDefinition(
            name=TASK,
            public_set=PUBLIC_SET,
            labels=LABELS,
            # Every hospital in every round: the same seed gives the same result on a slow machine.
            rounds=RoundPolicy(max_rounds=max_rounds, deadline=120, quorum=len(HOSPITALS)),
            silos=tuple(hospital.name for hospital in HOSPITALS),
        )
        await link.admin.CreateTask(admin_pb2.CreateTaskRequest(definition=definition.to_proto()))
        self._view.advance(Step.PUBLIC_SET)

    async def _admit(
        self, link: AdminClient, hospital: Hospital, cohorts: Cohorts, seed: int
    ) -> None:
        """Registers a hospital; it joins with its token and starts its agent and its trainer."""
        name, home = hospital.name, self._homes[hospital.name]
        write_silo_files(home.root, hospital, cohorts.private[name], seed)
        request = admin_pb2.RegisterSiloRequest(
            name=name, token_lifetime=duration(timedelta(hours=1))
        )
        token = home.root / "join-token"
        # In a file, because every user of the machine may read a process's arguments.
        token.write_text((await link.admin.RegisterSilo(request)).join_token, encoding="ascii")
        await self._processes.run(
            f"{name} join", "agent", "join", f"@{token}", "--home", str(home.root)
        )
        self._view.advance(Step.JOIN, hospital.title)
        self._processes.serve(name, "agent", "run", "--home", str(home.root))
        await until(home.socket.exists)
        trainer = TrainerClient(home.socket)
        try:
            isolation = (await trainer.wait_ready()).isolation
        finally:
            await trainer.close()
        self._isolation[name] = enum_word(trainer_pb2.Isolation, isolation)
        self._view.advance(Step.START, hospital.title)

    async def _follow(self, link: AdminClient, started: Callable[[], None]) -> None:
        """Starts the task once everyone is connected, and shows it until it is finished."""
        running, counted = False, 0
        async for update in link.admin.WatchTask(admin_pb2.WatchTaskRequest(name=TASK)):
            self._view.show_task(update, self._isolation)
            if not running and all(silo.connected for silo in update.silos):
                await link.admin.StartTask(admin_pb2.StartTaskRequest(name=TASK))
                running = True
                started()
            while counted < update.task.consensus.round:
                self._view.advance(Step.ROUNDS)
                counted += 1
            if update.task.status == task_pb2.TASK_STATUS_PAUSED:
                raise DemoFailed(
                    f"The task was paused: {update.task.reason}",
                    "Run it again with `--keep DIR` and look into the hospitals' logs.",
                )
        self._view.finish(Step.ROUNDS)

    async def _export(self) -> dict[str, Path]:
        """Each hospital trains once more on the final consensus and copies its model to a file."""
        files = {name: home.root / "model.joblib" for name, home in self._homes.items()}

        async def export(hospital: Hospital) -> None:
            home, out = self._homes[hospital.name], files[hospital.name]
            await until(lambda: _has_model(home))
            await self._processes.run(
                f"{hospital.name} export-model",
                *("agent", "export-model", TASK, "--out", str(out), "--home", str(home.root)),
            )
            self._view.advance(Step.MODELS, hospital.title)

        async with task_group() as group:
            for hospital in HOSPITALS:
                group.create_task(export(hospital))
        return files

    async def _published(
        self, definition: TaskDefinition, history: Iterable[admin_pb2.ClosedRound]
    ) -> tuple[Round, ...]:
        """Every round's consensus, fetched as a hospital fetches it."""
        identity = IdentityFiles.load(self._homes[HOSPITALS[0].name].identity)
        link = CoordinatorClient(identity)
        rounds = []
        try:
            for closed in history:
                header = closed.consensus
                fetched = await link.consensus(TASK, header.round)
                rounds.append(
                    Round(
                        round_number=header.round,
                        ballots=header.ballots,
                        churn=header.changed_rows / definition.rows,
                        seconds=_seconds(closed),
                        closed_by=closed.closed_by,
                        labels=unpack(fetched.data, definition.shape.as_index()),
                    )
                )
        finally:
            await link.close()
        return tuple(rounds)


@asynccontextmanager
async def _in_time(stage: str) -> AsyncIterator[asyncio.Timeout]:
    try:
        async with asyncio.timeout(_STAGE_SECONDS) as limit:
            yield limit
    except TimeoutError:
        raise DemoFailed(
            f"The demo is stuck: {stage} has taken more than {_STAGE_SECONDS:.0f} s.",
            "Run it again with `--keep DIR` and look into the logs there.",
        ) from None


def _has_model(home: SiloHome) -> bool:
    return find_task(home.trainer / "tasks", TASK).model_path() is not None


def _seconds(closed: admin_pb2.ClosedRound) -> float:
    return (closed.closed_at.ToDatetime() - closed.opened_at.ToDatetime()).total_seconds()
