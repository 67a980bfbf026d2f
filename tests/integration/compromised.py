"""A hospital's real trainer, asked over its real socket by an agent that says whatever the test likes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from coordinator_process import consilium
from patience import PATIENCE
from service import Service

from coordinator.public_sets.convert import convert
from silo_agent.agent.trainer_client import TrainerClient
from silo_agent.shared.home import SiloHome
from wire.ballot import unpack
from wire.consilium.v1 import registry_pb2
from wire.errors import Fault, Refusal
from wire.runtime.files import digest_of
from wire.task.definition import TaskDefinition

LABELS = ["ill", "well"]
ROWS = 80
NO_NOISE: dict[str, Any] = {
    "data": {"path": "data.csv", "label": "state"},
    "model": "decision_tree",
}
EPSILON_1: dict[str, Any] = NO_NOISE | {
    "privacy": {"mechanism": "private_labeller", "epsilon": 1},
    "policy": {"max_epsilon": 1},
}


class Hospital:
    """Patients whose diagnosis is a coin flip, and a public set that has their very rows."""

    def __init__(self, folder: Path) -> None:
        self.home = SiloHome(folder)
        rng = np.random.default_rng(7)
        self.rows = rng.normal(size=(ROWS, 2)).round(6)
        self.diagnoses = rng.integers(0, 2, ROWS)
        lines = [
            f"{a},{b},{LABELS[y]}" for (a, b), y in zip(self.rows, self.diagnoses, strict=True)
        ]
        (folder / "data.csv").write_text("\n".join(["age,marker,state", *lines]) + "\n")
        self.public = self.publish("wards", self.rows)
        self._trainer = Service(
            ["agent", "trainer", "--home", str(folder)],
            folder / "trainer.log",
            {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder)},
        )

    def publish(self, name: str, rows: Any) -> registry_pb2.PublicSet:
        """Puts a public set of these rows into the exchange folder."""
        source = self.home.root / f"{name}.csv"
        source.write_text("\n".join(["age,marker", *(f"{a},{b}" for a, b in rows)]) + "\n")
        made = convert(source, self.home.root / "converted")
        digest = digest_of(made.path)
        self.home.public_sets.mkdir(parents=True, exist_ok=True)
        shutil.move(made.path, self.home.public_sets / digest)
        return registry_pb2.PublicSet(digest=digest, schema=made.schema.to_proto())

    def settings(self, settings: dict[str, Any]) -> None:
        """Writes silo.yaml."""
        self.home.settings_file.write_text(yaml.safe_dump(settings))

    def start(self) -> None:
        """Starts the trainer, after ending the one before; returns when it answers."""
        self._trainer.end()
        self._trainer.log.unlink(missing_ok=True)
        self._trainer.start()
        self._trainer.until("trainer_ready")

    def end(self) -> None:
        """Ends the trainer."""
        self._trainer.end()

    def logged(self) -> str:
        """What the private side keeps to itself."""
        return self._trainer.text()

    def task(self, **changes: Any) -> TaskDefinition:
        """A task on the public set."""
        values = {"name": "wards-2026", "public_set": self.public.digest, "rows": ROWS}
        rounds = {"max_rounds": 3, "quorum": 2}
        return TaskDefinition.model_validate(
            {**values, "labels": LABELS, "rounds": rounds, **changes}
        )

    def recovered(self, task: TaskDefinition, ballot: bytes) -> int:
        """How many diagnoses a ballot gives away."""
        return int((unpack(ballot, task.shape) == self.diagnoses).sum())

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[TrainerClient]:
        """The other end of the trainer's socket."""
        link = TrainerClient(self.home.socket)
        try:
            await asyncio.wait_for(link.wait_ready(), PATIENCE)
            yield link
        finally:
            await link.close()

    def command(self, *arguments: object, status: int = 0) -> str:
        """What a command of the private side says to a person."""
        done = consilium("agent", *arguments, "--home", self.home.root, status=status)
        return done.out + done.err


async def refuses(call: Awaitable[object], fault: Fault) -> Refusal:
    """The refusal a call ends with."""
    with pytest.raises(Refusal) as refused:
        await call
    assert refused.value.is_a(fault), (refused.value.code, refused.value.sentence)
    return refused.value
