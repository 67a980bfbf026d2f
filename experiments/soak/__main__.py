"""`python -m experiments.soak`: run rounds under faults, print the outcome, fail if a promise is broken."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from experiments.soak.outcome import Outcome
from experiments.soak.processes import SoakFailed
from experiments.soak.run import Plan, soak
from experiments.soak.schedule import draw
from experiments.soak.view import LiveView, print_outcome, write_plot
from experiments.terminal import console
from wire.errors import ConsiliumError
from wire.runtime.files import write_atomically
from wire.runtime.terminal import print_error


def main(
    silos: Annotated[int, typer.Option(help="Silos, each with an agent of its own.", min=2)] = 20,
    rounds: Annotated[int, typer.Option(help="Rounds to run.", min=3)] = 200,
    seed: Annotated[int, typer.Option(help="Decides which fault comes when.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for result.json and memory.svg.")] = Path(
        "soak-report"
    ),
    keep: Annotated[
        Path | None, typer.Option(help="Empty folder with a short name to run in, and keep.")
    ] = None,
) -> None:
    """Kill, cut off and slow down a federation; compare it with a run without faults."""
    plan = Plan(silos, rounds, seed)
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        outcome = _run(plan, _empty(keep) if keep else Path(scratch))
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "result.json", json.dumps(outcome.as_json(), indent=1).encode())
    write_plot(outcome, out / "memory.svg")
    print_outcome(outcome, console)
    console.print(f"Numbers and plot: {out}")
    if not outcome.kept:
        raise typer.Exit(1)


def _run(plan: Plan, folder: Path) -> Outcome:
    schedule = draw(plan.silos, plan.rounds, plan.seed)

    async def run() -> Outcome:
        with LiveView(console, plan.rounds) as view:
            soaking = asyncio.ensure_future(soak(plan, schedule, folder, view))
            # Every process ends on the way out.
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, soaking.cancel)
            try:
                return await soaking
            except ExceptionGroup as group:
                # Whatever a fault's task met, the first of it says enough.
                raise group.exceptions[0] from None

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        raise typer.Exit(130) from None


def _empty(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise SoakFailed(f"{folder} is not empty.", "Name a folder that is, or none.")
    return folder.absolute()


if __name__ == "__main__":
    try:
        typer.run(main)
    except ConsiliumError as error:
        print_error(error)
        sys.exit(1)
