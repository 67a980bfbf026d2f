"""A whole federation on this machine: a coordinator process, silo processes, sockets, TLS, files.

Everything runs as `consilium` would run it; only what costs a process start and proves nothing (admin calls,
joining) is called in this process. Nothing outlives the test: every process dies with pytest.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import yaml
from patience import LEASE
from prometheus_client.parser import text_string_to_metric_families
from service import Service, eventually, free_port

from coordinator.cli.connection import AdminClient, admin_link
from coordinator.cli.coordinator import init
from coordinator.cli.public_set import add
from silo_agent.agent.audit.entries import AuditEntry
from silo_agent.agent.audit.recorder import read_entries
from silo_agent.shared.home import SiloHome
from wire.consilium.v1 import admin_pb2, task_pb2
from wire.identity.files import IdentityFiles
from wire.net.enrolment import join
from wire.task.definition import TaskDefinition

T = TypeVar("T")

HERE = Path(__file__).parent
LABELS = ("benign", "malignant")
ROWS = 61
"""Rows of the public set: no multiple of eight, so that ballots have padding."""
PRIVATE_ROWS = 24


class Silo:
    """A hospital: its folder, and its agent once it runs."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.home = SiloHome(folder)
        self.gate = folder / "gate"
        self.gate.mkdir(parents=True)
        self.metrics_port = free_port()
        path = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.agent = Service(
            [
                *("agent", "run", "--home", str(folder), "--lease-patience", "0"),
                *("--metrics-port", str(self.metrics_port)),
            ],
            folder.with_suffix(".log"),
            {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"},
        )

    def identity(self) -> IdentityFiles:
        """Its key and certificate."""
        return IdentityFiles.load(self.home.identity)

    def close_gate(self) -> None:
        """Its next fit waits."""
        (self.gate / "closed").touch()

    def open_gate(self) -> None:
        """Lets it train."""
        (self.gate / "closed").unlink(missing_ok=True)

    def fits(self) -> list[int]:
        """The number of rows of each fit begun, oldest first."""
        entered = self.gate / "entered"
        return [int(line) for line in entered.read_text().split()] if entered.exists() else []

    def trainer(self) -> int:
        """The process id of its trainer, once it runs."""

        def probe() -> int | None:
            children = Path(f"/proc/{self.agent.pid}/task/{self.agent.pid}/children").read_text()
            return int(children.split()[0]) if children.split() else None

        return eventually(f"a trainer of {self.name}", probe)

    def audit_entries(self) -> list[AuditEntry]:
        """What left it and what came."""
        return read_entries(self.home.agent)


def silo_settings(silo: Silo, model: object = None) -> dict[str, object]:
    """silo.yaml: by default a tree behind the silo's gate."""
    gated = {"name": "learners:GatedTree", "parameters": {"gate": str(silo.gate)}}
    return {
        "data": {"path": "data.csv", "label": "diagnosis"},
        "model": model or gated,
        "seed": 7,
        "policy": {"approve": "within_limits", "max_rounds": 100_000},
    }


def patients(rows: int, seed: int) -> pd.DataFrame:
    """Made-up patients: the label follows from two numbers, but not without noise."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows, 2))
    ill = values.sum(axis=1) + rng.normal(scale=0.8, size=rows) > 0
    # Both labels occur however few the rows.
    ill[:2] = False, True
    return pd.DataFrame(
        {"age": values[:, 0], "marker": values[:, 1], "diagnosis": np.take(LABELS, ill.astype(int))}
    )


class Federation:
    """A consortium with its coordinator's process and its silos' processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "coordinator"
        self.port, self.enrolment_port, self.metrics_port = (free_port() for _ in range(3))
        init(
            home=self.home,
            host=["localhost"],
            listen="127.0.0.1",
            port=self.port,
            enrolment_port=self.enrolment_port,
            metrics_port=self.metrics_port,
            metrics_per_silo=True,
            lease=LEASE,
        )
        self.coordinator = Service(
            ["coordinator", "serve", "--home", str(self.home)], folder / "coordinator.log", {}
        )
        self.silos: dict[str, Silo] = {}

    def serve(self) -> None:
        """Starts the coordinator, also after it was killed, and waits until it answers."""
        before = len(self.coordinator.events("coordinator_ready"))
        self.coordinator.start()
        eventually(
            "coordinator_ready",
            lambda: len(self.coordinator.events("coordinator_ready")) > before,
        )

    def admin(self, call: Callable[[AdminClient], Awaitable[T]]) -> T:
        """What an admin's call answers."""

        async def connected() -> T:
            async with admin_link(self.home) as link:
                return await call(link)

        return asyncio.run(connected())

    def publish(self) -> None:
        """Publishes the public set, `wards`."""
        path = self.folder / "wards.csv"
        patients(ROWS, seed=0).drop(columns="diagnosis").to_csv(path, index=False)
        add("wards", path, home=self.home)

    def register(self, name: str) -> str:
        """A join token."""
        request = admin_pb2.RegisterSiloRequest(name=name)
        request.token_lifetime.FromSeconds(600)
        return self.admin(lambda link: link.admin.RegisterSilo(request)).join_token

    def join(
        self, name: str, model: object = None, privacy: object = None, rows: int = PRIVATE_ROWS
    ) -> Silo:
        """A silo with an identity, data and silo.yaml; its agent does not run yet."""
        silo = self.silos[name] = Silo(name, self.folder / name)
        asyncio.run(join(self.register(name), silo.home.identity, lambda: datetime.now(UTC)))
        seed = sum(name.encode())
        patients(rows, seed).to_csv(silo.home.root / "data.csv", index=False)
        settings = silo_settings(silo, model) | ({"privacy": privacy} if privacy else {})
        silo.home.settings_file.write_text(yaml.safe_dump(settings))
        return silo

    def run(self, *silos: Silo) -> None:
        """Starts agents side by side and waits until all are connected."""
        before = [len(silo.agent.events("connected")) for silo in silos]
        for silo in silos:
            silo.agent.start()
        for silo, times in zip(silos, before, strict=True):
            eventually(f"{silo.name} connected", partial(_connected_again, silo, times))

    def start(self, name: str, **definition: Any) -> task_pb2.TaskState:
        """Creates a task on `wards` and starts it; `rounds` keys and others override the defaults."""
        rounds = {"max_rounds": 3, "deadline": "1h", "grace": "1h", "quorum": 2, "stop_patience": 0}
        rounds |= definition.pop("rounds", {})
        task = TaskDefinition.model_validate(
            {"name": name, "public_set": "wards", "labels": LABELS, "rounds": rounds, **definition}
        )
        request = admin_pb2.CreateTaskRequest(definition=task.to_proto())
        self.admin(lambda link: link.admin.CreateTask(request))
        return self.resume(name)

    def resume(self, name: str) -> task_pb2.TaskState:
        """`consilium task start`."""
        request = admin_pb2.StartTaskRequest(name=name)
        return self.admin(lambda link: link.admin.StartTask(request)).task

    def pause(self, name: str) -> None:
        """`consilium task pause`."""
        self.admin(lambda link: link.admin.PauseTask(admin_pb2.PauseTaskRequest(name=name)))

    def revoke(self, name: str) -> None:
        """`consilium silo revoke`."""
        self.admin(lambda link: link.admin.RevokeSilo(admin_pb2.RevokeSiloRequest(name=name)))

    def show(self, name: str) -> admin_pb2.GetTaskResponse:
        """A task and its closed rounds."""
        return self.admin(lambda link: link.admin.GetTask(admin_pb2.GetTaskRequest(name=name)))

    def status(self, name: str) -> task_pb2.TaskStatus.ValueType:
        """Where a task is in its life."""
        return self.show(name).task.status

    def silo(self, name: str) -> admin_pb2.Silo:
        """What the coordinator knows of a silo."""
        return self.admin(lambda link: link.admin.GetSilo(admin_pb2.GetSiloRequest(name=name))).silo

    def until_voted(self, task: str, *silos: str) -> None:
        """Waits until the open round holds the ballots of exactly these silos."""
        eventually(
            f"ballots of {silos} in {task}",
            lambda: set(self.show(task).task.open_round.voted) == set(silos),
        )

    def until_finished(self, task: str) -> admin_pb2.GetTaskResponse:
        """Waits for the end of a task; the task as it then stands."""
        finished = task_pb2.TASK_STATUS_FINISHED
        eventually(f"the end of {task}", lambda: self.status(task) == finished)
        return self.show(task)

    def ballots(self, task: str) -> dict[tuple[int, str], str]:
        """Digest of every stored ballot by round and silo, read from the database file itself."""
        rows = self._rows("SELECT round, silo, digest FROM ballots WHERE task = ?", task)
        found = {(number, silo): digest for number, silo, digest in rows}
        assert len(found) == len(rows), "a silo was counted twice"
        return found

    def consensuses(self, task: str) -> list[bytes]:
        """The packed consensus of every closed round, read from the database file itself."""
        query = "SELECT consensus FROM rounds WHERE task = ? AND closed_at NOT NULL ORDER BY number"
        return [payload for (payload,) in self._rows(query, task)]

    def _rows(self, query: str, task: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"file:{self.home}/coordinator.db?mode=ro", uri=True)) as file:
            return file.execute(query, (task,)).fetchall()

    def metrics_page(self) -> str:
        """What Prometheus would read."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics") as page:
            return str(page.read(), "utf-8")

    def counted(self, metric: str, **labels: str) -> float:
        """One sample of the metrics page, 0 if it is not there."""
        families = text_string_to_metric_families(self.metrics_page())
        samples = [sample for family in families for sample in family.samples]
        return sum(s.value for s in samples if s.name == metric and s.labels == labels)

    def end(self) -> None:
        """Kills everything and shows the logs, which pytest prints if the test failed."""
        services = [self.coordinator, *(silo.agent for silo in self.silos.values())]
        for service in services:
            service.end()
            print(f"----- {service.log.name}\n{service.text()}")


def _connected_again(silo: Silo, times: int) -> bool:
    if silo.agent.ended():
        raise AssertionError(f"{silo.name} ended:\n{silo.agent.text()}")
    return len(silo.agent.events("connected")) > times


@contextmanager
def federation(folder: Path) -> Iterator[Federation]:
    """A federation whose coordinator serves and has published `wards`; all of it ends with the block."""
    made = Federation(folder)
    try:
        made.serve()
        made.publish()
        yield made
    finally:
        made.end()


def digests(history: admin_pb2.GetTaskResponse) -> list[str]:
    """The consensus digest of every closed round."""
    return [closed.consensus.digest for closed in history.history]
