"""Approval at the hospital, with real processes: nothing is trained or leaves before the digest is accepted."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pytest
from patience import LEASE, PATIENCE
from service import eventually

from coordinator.cli.connection import AdminClient, admin_link
from coordinator.cli.silo import silo_row
from coordinator.public_sets.convert import convert
from silo_agent.agent.audit.entries import Direction, Kind
from silo_agent.agent.audit.recorder import read_entries
from silo_agent.agent.trainer_client import TrainerClient
from silo_agent.shared.home import SiloHome
from silo_agent.trainer.approval.view import seen
from silo_agent.trainer.settings import read_settings
from silo_agent.trainer.task_folder import TaskFolder
from wire.consilium.v1 import admin_pb2, registry_pb2, task_pb2, trainer_pb2
from wire.errors import (
    APPROVAL_NEEDED,
    APPROVAL_REFUSED_BY_POLICY,
    APPROVAL_WITHDRAWN,
    NOT_PREPARED,
    ROUND_BEYOND_TASK,
    Fault,
    Refusal,
)
from wire.identity.account import os_account
from wire.runtime.files import digest_of
from wire.task.definition import TaskDefinition

CONSILIUM = Path(sys.executable).with_name("consilium")
T = TypeVar("T")
# A program of its own, not `preexec_fn`: Python code between fork and exec hangs where gRPC has threads.
DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
)
LABELS = ["benign", "malignant"]
GATED = """
import time
from pathlib import Path
from sklearn.tree import DecisionTreeClassifier

class Gated(DecisionTreeClassifier):
    def __init__(self, gate=""):
        super().__init__(max_depth=2)
        self.gate = gate

    def fit(self, X, y):
        (Path(self.gate) / "entered").touch()
        while (Path(self.gate) / "closed").exists():
            time.sleep(0.02)
        return super().fit(X, y)
"""


def consilium(*arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs a command as a person would; nobody is there to answer its questions."""
    done = subprocess.run(
        [CONSILIUM, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=os.environ | {"COLUMNS": "200"},
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def listed(*arguments: object) -> Any:
    return json.loads(consilium(*arguments, "--json").stdout)


@contextmanager
def running(log: Path, *arguments: object, path: str = "") -> Iterator[None]:
    """A `consilium` process in a session of its own; none of it outlives the test, or pytest."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-ISc", DIE_WITH_PARENT, CONSILIUM, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def events(log: Path, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == name]


def patients(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows, 2))
    ill = values.sum(axis=1) + rng.normal(scale=0.5, size=rows) > 0
    ill[:2] = False, True
    return pd.DataFrame(
        {"age": values[:, 0], "marker": values[:, 1], "diagnosis": np.take(LABELS, ill.astype(int))}
    )


def furnish(home: Path, policy: str, model: str = "decision_tree") -> SiloHome:
    """A hospital's data and silo.yaml."""
    home.mkdir(exist_ok=True)
    patients(24, seed=sum(home.name.encode())).to_csv(home / "data.csv", index=False)
    text = f"data: {{path: data.csv, label: diagnosis}}\nmodel: {model}\n{policy}"
    (home / "silo.yaml").write_text(text)
    return SiloHome(home)


def ballots(home: SiloHome) -> list[Path]:
    return sorted(home.tasks.glob("*/ballot-*.kept"))


def learners(home: SiloHome) -> list[Path]:
    return sorted(home.tasks.glob("*/*.joblib"))


def agreed_to(home: SiloHome) -> list[str]:
    return [m.task for m in read_entries(home.agent) if m.kind is Kind.APPROVAL]


def sent(home: SiloHome) -> list[tuple[str, int]]:
    return [(m.task, m.round) for m in read_entries(home.agent) if m.direction is Direction.OUT]


# -- a whole federation -------------------------------------------------------------------------------


def free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@contextmanager
def coordinator(folder: Path) -> Iterator[Path]:
    """A coordinator that serves the public set `wards`; its home."""
    home = folder / "coordinator"
    port, enrolment, metrics = free_ports(3)
    arguments = ["--port", port, "--enrolment-port", enrolment, "--metrics-port", metrics]
    listen = ["--listen", "127.0.0.1", "--lease", LEASE]
    consilium("coordinator", "init", "--home", home, *arguments, *listen)
    log = folder / "coordinator.log"
    with running(log, "coordinator", "serve", "--home", home):
        eventually("a coordinator", lambda: events(log, "coordinator_ready"))
        patients(61, seed=0).drop(columns="diagnosis").to_csv(folder / "wards.csv", index=False)
        consilium("public-set", "add", "wards", folder / "wards.csv", "--home", home)
        yield home


def start_task(home: Path, name: str, rounds: int) -> None:
    definition = {
        "name": name,
        "public_set": "wards",
        "labels": LABELS,
        "rounds": {"max_rounds": rounds, "deadline": "1h", "grace": "200ms", "quorum": 2},
    }
    path = home.parent / f"{name}.yaml"
    path.write_text(json.dumps(definition))
    consilium("task", "create", "-f", path, "--start", "--home", home)


def ask(home: Path, call: Callable[[AdminClient], Awaitable[T]]) -> T:
    """What an admin's call answers; a process for every probe would be slow."""

    async def connected() -> T:
        async with admin_link(home) as link:
            return await call(link)

    return asyncio.run(connected())


def finished(home: Path, name: str) -> bool:
    request = admin_pb2.GetTaskRequest(name=name)
    task = ask(home, lambda link: link.admin.GetTask(request)).task
    return task.status == task_pb2.TASK_STATUS_FINISHED


def doing(home: Path) -> dict[str, str]:
    found = ask(home, lambda link: link.admin.ListSilos(admin_pb2.ListSilosRequest())).silos
    return {silo.name: str(silo_row(silo)["doing"]) for silo in found}


def state_of(home: SiloHome) -> dict[str, str]:
    return {
        task.definition.name: str(task.decision.state)
        for task in seen(home, read_settings(home.settings_file).criteria)
    }


def test_a_hospital_votes_only_in_what_it_approved_and_the_others_go_on(tmp_path: Path) -> None:
    policies = {
        "open": "policy: {approve: within_limits, max_rounds: 10}\n",
        "careful": "",
        "strict": "policy: {approve: within_limits, max_rounds: 2}\n",
    }
    logs = {name: tmp_path / f"{name}.log" for name in policies}
    with coordinator(tmp_path) as admin:
        silos = {}
        for name, policy in policies.items():
            token = listed("silo", "register", name, "--home", admin)["join_token"]
            consilium("agent", "join", token, "--home", tmp_path / name)
            silos[name] = furnish(tmp_path / name, policy)
        careful, strict = silos["careful"], silos["strict"]
        open_, waiting, refused = (
            running(logs[name], "agent", "run", "--home", tmp_path / name) for name in policies
        )
        with open_, waiting, refused:
            eventually(
                "agents connected",
                lambda: all(events(log, "connected") for log in logs.values()),
            )

            start_task(admin, "long", rounds=3)
            eventually("the vote of open", lambda: ("long", 1) in sent(silos["open"]))
            eventually(
                "the question", lambda: state_of(careful) == {"long": "waiting for approval"}
            )
            eventually(
                "the admin sees who holds up the task",
                lambda: (
                    doing(admin)
                    == {
                        "open": "voted",
                        "careful": "waiting for approval",
                        "strict": "refused by policy",
                    }
                ),
            )
            assert (ballots(careful), learners(careful), sent(careful)) == ([], [], [])
            (told,) = events(logs["careful"], "waiting_for_approval")
            assert told["hint"].endswith("`consilium agent approve long`.")
            (told,) = events(logs["strict"], "refused_by_policy")
            assert "max_rounds is 2, the task has 3" in told["sentence"]

            overridden = consilium(
                "agent", "approve", "long", "--yes", "--home", strict.root, check=False
            )
            assert overridden.returncode == 1
            assert "max_rounds is 2, the task has 3" in overridden.stderr

            asked = consilium("agent", "approve", "long", "--home", careful.root, check=False)
            assert asked.returncode == 1
            assert "61 rows × 2 bits × 3 rounds" in asked.stdout
            assert not careful.approvals.exists()

            consilium("agent", "approve", "long", "--yes", "--home", careful.root)
            (task,) = listed("agent", "tasks", "--home", careful.root)["tasks"]
            assert (task["state"], task["by"]) == ("approved", os_account())
            eventually("the end of long", lambda: finished(admin, "long"))
            assert sent(careful)[0] == ("long", 1)
            assert [number for _, number in sent(careful)] == [1, 2, 3]

            # Another definition: the approval of the first says nothing about it, and nobody waits.
            start_task(admin, "short", rounds=2)
            eventually("the end of short", lambda: finished(admin, "short"))
            assert {task for task, _ in sent(strict)} == {"short"}
            assert {task for task, _ in sent(careful)} == {"long"}
            eventually(
                "the question",
                lambda: state_of(careful) == {"long": "approved", "short": "waiting for approval"},
            )
            assert len(ballots(careful)) == 3
            assert {name: agreed_to(silo) for name, silo in silos.items()} == {
                "open": ["long", "short"],
                "careful": ["long"],
                "strict": ["short"],
            }
    assert len(events(logs["careful"], "waiting_for_approval")) == 2


# -- a compromised agent: it has the trainer's socket and asks whatever it likes ----------------------


@pytest.fixture
def public_set(tmp_path: Path) -> tuple[Path, registry_pb2.PublicSet]:
    """A public file and what the registry says of it."""
    source = tmp_path / "wards.parquet"
    patients(61, seed=0).drop(columns="diagnosis").to_parquet(source)
    made = convert(source, tmp_path / "sets")
    public = registry_pb2.PublicSet(digest=digest_of(made.path), schema=made.schema.to_proto())
    return made.path, public


def asked_for(public: registry_pb2.PublicSet, rounds: int = 3) -> TaskDefinition:
    values = {"name": "wards-2026", "public_set": public.digest, "rows": 61, "labels": LABELS}
    return TaskDefinition.model_validate({**values, "rounds": {"max_rounds": rounds, "quorum": 2}})


def compromise(
    home: SiloHome,
    public: tuple[Path, registry_pb2.PublicSet],
    attack: Callable[[TrainerClient], Awaitable[None]],
) -> None:
    """Runs the hospital's trainer, and `attack` on its socket."""
    home.public_sets.mkdir(parents=True)
    shutil.copy(public[0], home.public_sets / public[1].digest)
    log = home.root / "trainer.log"

    async def scenario() -> None:
        link = TrainerClient(home.socket)
        await asyncio.wait_for(link.wait_ready(), PATIENCE)
        await attack(link)
        await link.close()

    with running(log, "agent", "trainer", "--home", home.root, path=str(home.root)):
        asyncio.run(scenario())


async def refuses(call: Awaitable[object], *faults: Fault) -> Refusal:
    with pytest.raises(Refusal) as refused:
        await call
    assert refused.value.is_a(*faults), refused.value.code
    return refused.value


async def command(*arguments: object) -> None:
    await asyncio.to_thread(consilium, *arguments)


def test_a_compromised_agent_gets_no_ballot_before_a_person_has_approved(
    tmp_path: Path, public_set: tuple[Path, registry_pb2.PublicSet]
) -> None:
    home = furnish(tmp_path / "silo", "")
    public = public_set[1]
    task, longer = asked_for(public), asked_for(public, rounds=4)
    final = trainer_pb2.ConsensusLabels(round=3, data=bytes(task.shape.as_index().size_bytes))

    async def attack(link: TrainerClient) -> None:
        await refuses(link.vote(task.digest, 1, None, 0), NOT_PREPARED)
        await refuses(link.prepare(task.to_proto(), "north"), APPROVAL_NEEDED)
        await refuses(link.vote(task.digest, 1, None, 0), NOT_PREPARED)
        await refuses(link.finish(task.digest, final), NOT_PREPARED)
        assert (ballots(home), learners(home)) == ([], [])

        await command("agent", "approve", "wards-2026", "--yes", "--home", home.root)
        await link.prepare(task.to_proto(), "north")
        ballot = await link.vote(task.digest, 1, None, 0)
        assert len(ballot.data) == task.shape.size_bytes
        # More than was approved: a further round, another definition under the same name.
        await refuses(link.vote(task.digest, 4, None, 0), ROUND_BEYOND_TASK)
        await refuses(link.vote(task.digest, 0, None, 0), ROUND_BEYOND_TASK)
        await refuses(link.prepare(longer.to_proto(), "north"), APPROVAL_NEEDED)
        await refuses(link.vote(longer.digest, 4, None, 0), NOT_PREPARED)
        assert (await link.vote(task.digest, 1, None, 0)).data == ballot.data

        withdrawal = ["agent", "approve", task.digest, "--withdraw", "--home", home.root]
        await command(*withdrawal)
        await refuses(link.vote(task.digest, 1, None, 0), APPROVAL_WITHDRAWN)
        await refuses(link.vote(task.digest, 2, None, 0), APPROVAL_WITHDRAWN)
        await refuses(link.finish(task.digest, final), APPROVAL_WITHDRAWN)
        assert [path.name for path in ballots(home)] == ["ballot-000001.kept"]
        assert learners(home) == []

    compromise(home, public_set, attack)
    assert acts(home) == ["approved", "withdrawn"]


def acts(home: SiloHome) -> list[str]:
    return [json.loads(line)["entry"]["act"] for line in home.approvals.read_text().splitlines()]


def test_a_compromised_agent_cannot_talk_the_policy_into_another_public_set(
    tmp_path: Path, public_set: tuple[Path, registry_pb2.PublicSet]
) -> None:
    policy = f"policy: {{approve: within_limits, public_sets: ['{'ab' * 32}']}}\n"
    home = furnish(tmp_path / "silo", policy)
    task = asked_for(public_set[1])

    async def attack(link: TrainerClient) -> None:
        refusal = await refuses(link.prepare(task.to_proto(), "north"), APPROVAL_REFUSED_BY_POLICY)
        assert "public_sets" in refusal.sentence
        await refuses(link.vote(task.digest, 1, None, 0), NOT_PREPARED)
        # What the definition says must be what the file holds.
        claimed = task.model_copy(update={"public_set": "ab" * 32})
        shutil.copy(public_set[0], home.public_sets / ("ab" * 32))
        with pytest.raises(Refusal, match="does not have the digest"):
            await link.prepare(claimed.to_proto(), "north")

    compromise(home, public_set, attack)
    assert ballots(home) == []


def test_a_ballot_stays_here_if_approval_is_withdrawn_while_it_is_trained(
    tmp_path: Path, public_set: tuple[Path, registry_pb2.PublicSet]
) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    (gate / "closed").touch()
    model = f"{{name: 'gated:Gated', parameters: {{gate: '{gate}'}}}}"
    home = furnish(tmp_path / "silo", "", model)
    (home.root / "gated.py").write_text(GATED)
    public = public_set[1]
    task = asked_for(public)

    async def attack(link: TrainerClient) -> None:
        await refuses(link.propose(task.to_proto()), APPROVAL_NEEDED)
        await command("agent", "approve", "wards-2026", "--yes", "--home", home.root)
        await link.prepare(task.to_proto(), "north")
        vote = asyncio.create_task(link.vote(task.digest, 1, None, 0))
        await asyncio.to_thread(eventually, "training", (gate / "entered").exists)
        await command("agent", "approve", "wards-2026", "--withdraw", "--home", home.root)
        (gate / "closed").unlink()
        await refuses(vote, APPROVAL_WITHDRAWN)
        await command("agent", "approve", "wards-2026", "--yes", "--home", home.root)
        kept = TaskFolder(home.tasks, task.digest).ballot(1)
        assert (await link.vote(task.digest, 1, None, 0)).data == kept

    compromise(home, public_set, attack)
