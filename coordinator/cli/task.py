"""`consilium task`: define a federation, start it, watch it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live

from coordinator.cli.agreement_view import agreement_rows
from coordinator.cli.connection import Home, admin_link, run
from coordinator.cli.task_export import export
from coordinator.cli.task_preview import preview
from coordinator.cli.task_view import (
    closed_row,
    declaration_row,
    definition_words,
    task_panel,
    task_row,
)
from wire.consilium.v1 import admin_pb2, task_pb2
from wire.runtime.configuration import read_yaml
from wire.runtime.terminal import (
    JsonFlag,
    as_dict,
    console,
    print_json,
    print_messages,
    print_table,
    say,
)
from wire.task.definition import TaskDefinition

app = typer.Typer(no_args_is_help=True, help="Define federations, start them, watch them.")

Name = Annotated[str, typer.Argument(help="The task's name.")]


@app.command()
def create(
    file: Annotated[Path, typer.Option("--file", "-f", help="task.yaml")],
    home: Home,
    start_now: Annotated[bool, typer.Option("--start", help="Start it at once.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Store a task definition; it is immutable from then on."""
    definition = read_yaml(file, TaskDefinition)

    async def call() -> task_pb2.TaskState:
        async with admin_link(home) as link:
            request = admin_pb2.CreateTaskRequest(definition=definition.to_proto())
            state = (await link.admin.CreateTask(request)).task
            if start_now:
                start_request = admin_pb2.StartTaskRequest(name=definition.name)
                state = (await link.admin.StartTask(start_request)).task
            return state

    state = run(call())
    if as_json:
        print_json(as_dict(state))
        return
    say("Task [bold]{}[/], sha256 {}", state.definition.name, state.digest)
    if not start_now:
        say("Next: `consilium task start {}`.", definition.name)


@app.command()
def start(name: Name, home: Home) -> None:
    """Open the first round, or go on where the task was paused."""

    async def call() -> task_pb2.TaskState:
        async with admin_link(home) as link:
            return (await link.admin.StartTask(admin_pb2.StartTaskRequest(name=name))).task

    round_number = run(call()).open_round.number
    say("Task [bold]{}[/] is running; round {} is open.", name, round_number)


@app.command()
def pause(name: Name, home: Home) -> None:
    """Hold a task; its open round takes no ballots until it is started again.

    Of a task that the coordinator paused it says that you know: the alert ends.
    """

    async def call() -> None:
        async with admin_link(home) as link:
            await link.admin.PauseTask(admin_pb2.PauseTaskRequest(name=name))

    run(call())
    say("Task [bold]{}[/] is paused.", name)


@app.command(name="list")
def list_command(home: Home, as_json: JsonFlag = False) -> None:
    """List every task."""

    async def call() -> admin_pb2.ListTasksResponse:
        async with admin_link(home) as link:
            return await link.admin.ListTasks(admin_pb2.ListTasksRequest())

    tasks = run(call()).tasks
    if as_json:
        print_messages("tasks", tasks)
        return
    print_table(
        "Tasks",
        [task_row(task) for task in tasks],
        empty="There is no task yet: `consilium task create -f task.yaml`.",
    )


@app.command()
def show(name: Name, home: Home, as_json: JsonFlag = False) -> None:
    """Show a task and the history of its rounds."""

    async def call() -> admin_pb2.GetTaskResponse:
        async with admin_link(home) as link:
            return await link.admin.GetTask(admin_pb2.GetTaskRequest(name=name))

    response = run(call())
    if as_json:
        print_json(as_dict(response))
        return
    definition = response.task.definition
    for key, value in {**task_row(response.task), **definition_words(definition)}.items():
        say("{} {}", f"{key:<10}", value)
    rows = definition.rows
    print_table(
        "Rounds", [closed_row(closed, rows) for closed in response.history], empty="No round yet."
    )
    latest = response.history[-1] if response.history else admin_pb2.ClosedRound()
    hidden = definition.privacy.party_gamma_micros > 0
    print_table(
        f"Agreement with the consensus of round {latest.consensus.round}",
        agreement_rows(latest.agreement),
        empty="How far silos agree is not kept: the noise on the counts hides them."
        if hidden
        else "No silo has been compared with a consensus yet.",
    )
    print_table(
        "Privacy as the silos declare it",
        [declaration_row(declared) for declared in response.declarations],
        empty="No silo has voted yet.",
    )


@app.command()
def watch(name: Name, home: Home) -> None:
    """Follow a task live until it is finished; Ctrl-C only stops watching."""

    async def call() -> None:
        request = admin_pb2.WatchTaskRequest(name=name)
        async with admin_link(home) as link:
            with Live(console=console, refresh_per_second=4) as live:
                async for update in link.admin.WatchTask(request):
                    live.update(task_panel(update), refresh=True)

    run(call())


app.command()(preview)
app.command()(export)
