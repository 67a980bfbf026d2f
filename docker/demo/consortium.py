"""The demo's admin: `prepare` invites the hospitals, publishes the set and creates the task; `follow` starts it and tells its rounds."""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path

from coordinator.api.translation import duration
from coordinator.cli.connection import AdminClient, admin_link
from coordinator.cli.public_set import add
from coordinator.cli.task import create
from coordinator.cli.task_view import churn, waiting
from wire.consilium.v1 import admin_pb2, task_pb2
from wire.errors import ConsiliumError
from wire.runtime.configuration import read_yaml
from wire.runtime.files import write_atomically
from wire.task.definition import TaskDefinition

HOME = Path(os.environ["CONSILIUM_HOME"])
TOKENS = HOME.parent
PUBLIC = Path("/public/biopsies.csv")
TASK_FILE = Path("/demo/task.yaml")
TASK = "biopsies"


def prepare() -> None:
    """Brings the consortium to where the demo begins; what is done already stays as it is."""
    hospitals = read_yaml(TASK_FILE, TaskDefinition).silos
    if asyncio.run(invite(hospitals)):
        add(TASK, PUBLIC, home=HOME)
        create(TASK_FILE, home=HOME)


async def invite(hospitals: tuple[str, ...]) -> bool:
    """Writes a token for each hospital; True if the task is still to be created."""
    async with admin_link(HOME) as link:
        silos = (await link.admin.ListSilos(admin_pb2.ListSilosRequest())).silos
        members = {silo.name for silo in silos}
        if strangers := sorted(members - set(hospitals)):
            sys.exit(
                f"This consortium has members of its own ({', '.join(strangers)}): the demo is not for it. "
                "Stop this one and give the demo a project of its own: docker compose --project-name demo --profile demo up"
            )
        for name in hospitals:
            if not (TOKENS / name).exists():
                # One that was registered but never got its token down is given another.
                await register(link, name, replace=name in members)
        tasks = (await link.admin.ListTasks(admin_pb2.ListTasksRequest())).tasks
        return TASK not in [task.definition.name for task in tasks]


async def register(link: AdminClient, name: str, *, replace: bool) -> None:
    """Registers a hospital and leaves its token where it fetches it."""
    request = admin_pb2.RegisterSiloRequest(
        name=name, token_lifetime=duration(timedelta(days=1)), replace_token=replace
    )
    token = (await link.admin.RegisterSilo(request)).join_token
    # The agent that reads it is another user.
    write_atomically(TOKENS / name, token.encode(), 0o644)
    TOKENS.chmod(0o711)
    print(f"{name} is registered and has its token.", flush=True)


async def follow() -> None:
    """Starts the task and tells its rounds to the end; a coordinator that is away for a while is waited for."""
    told = ""
    while True:
        try:
            async with admin_link(HOME) as link:
                known = await link.admin.GetTask(admin_pb2.GetTaskRequest(name=TASK))
                if known.task.status == task_pb2.TASK_STATUS_DRAFT:
                    await link.admin.StartTask(admin_pb2.StartTaskRequest(name=TASK))
                async for change_bus in link.admin.WatchTask(admin_pb2.WatchTaskRequest(name=TASK)):
                    told = tell(change_bus.task, told)
                    if change_bus.task.status == task_pb2.TASK_STATUS_PAUSED:
                        sys.exit(f"The task is paused: {change_bus.task.reason}")
                    if change_bus.task.status == task_pb2.TASK_STATUS_FINISHED:
                        return
        except ConsiliumError as error:
            print(f"Trying again: {error}", flush=True)
        await asyncio.sleep(1)


def tell(task: task_pb2.TaskState, told: str) -> str:
    """Prints where the task stands, unless that was the last thing said; what was said."""
    number = task.open_round.number or task.consensus.round
    most = task.definition.rounds.max_rounds
    line = f"round {number} of at most {most} · {waiting(task)} · churn {churn(task)}"
    if task.reason:
        line += f" · {task.reason}"
    if line != told:
        print(line, flush=True)
    return line


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        prepare()
    else:
        asyncio.run(follow())
