"""`consilium demo`: five hospitals, five learners, one federation on this machine."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console

from experiments.terminal import console, errors
from wire.errors import ConfigurationError, ConsiliumError
from wire.runtime.terminal import JsonFlag, print_json

if TYPE_CHECKING:
    from experiments.demo.outcome import Outcome
    from experiments.demo.report import Report

T = TypeVar("T")

demo = typer.Typer(help="Run five hospitals and their federation on this machine.")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@demo.callback(invoke_without_command=True)
def run(
    seed: Annotated[
        int, typer.Option(help="Decides who gets which patients.", min=0, max=2**32 - 1)
    ] = 1,
    rounds: Annotated[int, typer.Option(help="Rounds at most.", min=1, max=1000)] = 5,
    report: Annotated[Path, typer.Option(help="Folder for the HTML report.")] = Path("demo-report"),
    keep: Annotated[
        Path | None,
        typer.Option(help="New or empty folder to run in and to keep: logs, keys, models."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Run five hospitals and their federation on this machine; compare alone, together and pooled.

    Every hospital is an agent and a trainer, the coordinator is a process too, and they speak mutual TLS on
    loopback. Nothing is left running, however the demo ends.
    """
    shown = errors if as_json else console
    outcome, written = _interruptible(_show(seed, rounds, report, keep, shown))
    if as_json:
        print_json({**outcome.as_json(), "report": str(written.page), "plots": written.plots})
    else:
        from experiments.demo.summary import print_summary

        print_summary(outcome, written, console)
    if keep is not None:
        shown.print(f"Kept: {keep} (keys and private data included).")


async def _show(
    seed: int, rounds: int, report: Path, keep: Path | None, shown: Console
) -> tuple[Outcome, Report]:
    with _folder(keep) as folder:
        shown.print(
            f"[bold]Consilium demo[/], seed {seed}: five hospitals, five learners, real processes."
        )
        # Imported here, because `consilium --help` must not wait for the learners' libraries.
        try:
            from experiments.demo.run import run_demo
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"The demo needs the package {error.name}, which is not installed.",
                'Install it with `pip install "consilium[demo]"`.',
            ) from None
        return await run_demo(folder, seed, rounds, report, shown)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """The folder everything lies in: a temporary one that is removed, or the one to keep."""
    if keep is None:
        folder = Path(tempfile.mkdtemp(prefix="consilium-demo-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    keep = keep.absolute()
    try:
        keep.mkdir(parents=True, exist_ok=True, mode=0o700)
        taken = any(keep.iterdir())
    except OSError as error:
        raise ConfigurationError(f"{keep} cannot be used: {error.strerror}.") from None
    if taken:
        raise ConfigurationError(f"{keep} is not empty.", "Name a new folder with `--keep`.")
    yield keep


def _interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work`; a signal cancels it once, lets it clean up, and exits with 128 + its number.

    `work` does nothing that needs cleaning up before the signals are in hand.
    """
    received: list[int] = []

    async def main() -> T:
        task = asyncio.ensure_future(work)

        def stop(number: int) -> None:
            # A second Ctrl-C must not interrupt the cleaning up after the first.
            if not received:
                task.cancel()
            received.append(number)

        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        return await task

    try:
        return asyncio.run(main())
    # What is cancelled in the middle of a call may complain in its own way.
    except (asyncio.CancelledError, ConsiliumError):
        if not received:
            raise
        errors.print("Stopped; every process of the demo has ended.")
        raise typer.Exit(128 + received[0]) from None
