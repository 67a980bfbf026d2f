"""`consilium agent`, the private side's commands: trainer, check, export-model."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import signal
from pathlib import Path
from typing import Annotated

import typer

from silo_agent.home import SiloHome, default_home
from silo_agent.trainer.isolation import give_up_network
from wire.errors import ConfigurationError
from wire.logs import configure_logs
from wire.terminal import console

private = typer.Typer(help="The private side.")

_PR_SET_PDEATHSIG = 1

Home = Annotated[
    Path,
    typer.Option(
        "--home",
        envvar="CONSILIUM_SILO_HOME",
        default_factory=default_home,
        show_default="~/.consilium/silo",
        help="The silo's folder.",
    ),
]


@private.command()
def trainer(
    home: Home,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    follow_parent: Annotated[
        int, typer.Option(hidden=True, help="End when this process, the one that started it, ends.")
    ] = 0,
) -> None:
    """Run the private side alone: data, model, no network."""
    configure_logs(log_level)
    if follow_parent:
        _die_with(follow_parent)
    # Before anything that starts a thread: a user namespace needs a single one.
    isolation = give_up_network()
    from silo_agent.trainer.server import serve

    asyncio.run(serve(SiloHome(home), isolation))


@private.command()
def check(
    home: Home,
    public_set: Annotated[
        Path | None, typer.Option(help="A downloaded public set; default: those of past tasks.")
    ] = None,
) -> None:
    """Check silo.yaml, the private data and the learner before anything starts."""
    from silo_agent.trainer.rehearsal import rehearse

    rehearse(SiloHome(home), public_set, console)


@private.command(name="export-model")
def export_model(
    task: Annotated[str, typer.Argument(help="Name of a finished task.")],
    out: Annotated[Path, typer.Option(help="File to write.")],
    home: Home,
) -> None:
    """Copy the final model of a task to a file here at home; load it with joblib.load."""
    from silo_agent.trainer.task_folder import find_task

    path = find_task(SiloHome(home).trainer / "tasks", task).model_path()
    if path is None:
        raise ConfigurationError(
            f"Task {task} has no final model yet.", "It is trained when the task has finished."
        )
    try:
        shutil.copyfile(path, out)
    except OSError as error:
        raise ConfigurationError(f"{out} cannot be written: {error.strerror}.") from None
    console.print(f"Model of [bold]{task}[/] written to {out}; it holds private knowledge.")


def _die_with(parent: int) -> None:
    """Has the kernel end this process when `parent` does, however that ends.

    Not by SIGTERM, which lets a training finish: the next agent's trainer would share its folder and
    socket with this one for as long as that takes.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have ended before the kernel was asked.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
