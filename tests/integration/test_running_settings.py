"""What a person approves is what the running trainer does, whatever silo.yaml says meanwhile. Real trainer, real socket."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from compromised import EPSILON_1, NO_NOISE, Hospital, refuses
from service import eventually

from silo_agent.trainer.approval.consent import act_on
from silo_agent.trainer.approval.record import Act, ApprovalRecord
from silo_agent.trainer.settings import read_settings
from wire.consilium.v1 import trainer_pb2
from wire.errors import APPROVAL_NEEDED, APPROVAL_OUTDATED, SETTINGS_CHANGED

GATED = """
import time
from pathlib import Path
from sklearn.tree import DecisionTreeClassifier

class Gated(DecisionTreeClassifier):
    def __init__(self, gate=""):
        super().__init__()
        self.gate = gate

    def fit(self, X, y):
        (Path(self.gate) / "entered").touch()
        while (Path(self.gate) / "closed").exists():
            time.sleep(0.02)
        return super().fit(X, y)
"""


@pytest.fixture
def hospital() -> Iterator[Hospital]:
    # A Unix socket's path must be short; pytest's folders are not.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        made = Hospital(Path(folder))
        try:
            yield made
        finally:
            made.end()


def test_a_promise_of_the_file_is_neither_approved_nor_kept_by_a_trainer_that_runs_without_noise(
    hospital: Hospital,
) -> None:
    hospital.settings(NO_NOISE)
    hospital.start()
    task = hospital.task()

    async def attack() -> None:
        async with hospital.agent() as link:
            await refuses(link.propose(task.to_proto()), APPROVAL_NEEDED)
            hospital.settings(EPSILON_1)
            said = await asyncio.to_thread(
                hospital.command, "approve", task.name, "--yes", status=1
            )
            assert "The trainer runs with other settings than silo.yaml has now." in said
            assert "Restart the trainer" in said
            assert not hospital.home.approvals.exists()
            # An approval that got into the record all the same, say of another copy of silo.yaml.
            criteria = read_settings(hospital.home.settings_file).criteria
            act = act_on(Act.APPROVED, task, criteria, "officer", datetime.now(UTC))
            ApprovalRecord(hospital.home.approvals).add(act)
            await refuses(link.propose(task.to_proto()), SETTINGS_CHANGED)
            await refuses(link.prepare(task.to_proto(), "north"), SETTINGS_CHANGED)
            assert not (await link.describe()).HasField("privacy_totals")
            # Nor does it hold for the settings that run.
            hospital.settings(NO_NOISE)
            await refuses(link.propose(task.to_proto()), APPROVAL_OUTDATED)
            await refuses(link.prepare(task.to_proto(), "north"), APPROVAL_OUTDATED)
            assert (await link.describe()).HasField("privacy_totals")

    asyncio.run(attack())
    assert not list(hospital.home.tasks.glob("*/ballot-*"))


def test_a_restarted_trainer_asks_again_when_other_things_would_leave(hospital: Hospital) -> None:
    task = hospital.task()
    hospital.settings(EPSILON_1)
    hospital.start()

    async def vote(number: int) -> trainer_pb2.VoteResponse:
        async with hospital.agent() as link:
            await link.prepare(task.to_proto(), "north")
            return await link.vote(task.digest, number, None, 0)

    async def approved() -> None:
        async with hospital.agent() as link:
            await refuses(link.propose(task.to_proto()), APPROVAL_NEEDED)
        said = await asyncio.to_thread(hospital.command, "approve", task.name, "--yes")
        assert "at most ε = 1 at" in said

    asyncio.run(approved())
    asyncio.run(vote(1))
    hospital.settings(NO_NOISE)
    hospital.start()

    async def asked_again() -> None:
        async with hospital.agent() as link:
            refusal = await refuses(link.propose(task.to_proto()), APPROVAL_OUTDATED)
            assert f"consilium agent approve {task.name}" in refusal.hint
        listed = await asyncio.to_thread(hospital.command, "tasks", "--json")
        assert json.loads(listed)["tasks"][0]["state"] == "waiting for approval"

    asyncio.run(asked_again())
    hospital.settings(EPSILON_1 | {"policy": {"max_epsilon": 2}})
    hospital.start()
    # The policy decides nothing of what leaves: the approval holds.
    asyncio.run(vote(2))


def test_a_ballot_stays_here_if_silo_yaml_changes_while_it_is_trained(hospital: Hospital) -> None:
    gate = hospital.home.root / "gate"
    gate.mkdir()
    (gate / "closed").touch()
    (hospital.home.root / "gated.py").write_text(GATED)
    model = {"name": "gated:Gated", "parameters": {"gate": str(gate)}}
    settings = NO_NOISE | {"model": model}
    hospital.settings(settings)
    hospital.start()
    task = hospital.task()

    async def scenario() -> None:
        async with hospital.agent() as link:
            await refuses(link.propose(task.to_proto()), APPROVAL_NEEDED)
            await asyncio.to_thread(hospital.command, "approve", task.name, "--yes")
            await link.prepare(task.to_proto(), "north")
            vote = asyncio.create_task(link.vote(task.digest, 1, None, 0))
            await asyncio.to_thread(eventually, "training", (gate / "entered").exists)
            hospital.settings(settings | {"privacy": EPSILON_1["privacy"]})
            (gate / "closed").unlink()
            await refuses(vote, SETTINGS_CHANGED)
            final = trainer_pb2.ConsensusLabels(
                round=1, data=bytes(task.shape.as_index().size_bytes)
            )
            await refuses(link.finish(task.digest, final), SETTINGS_CHANGED)
            hospital.settings(settings)
            ballot = await link.vote(task.digest, 1, None, 0)
            assert hospital.recovered(task, ballot.data) == len(hospital.diagnoses)

    asyncio.run(scenario())
