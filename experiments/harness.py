"""Runs the cells of a table, (setting, seed) each, in parallel processes; every result is written at once.

A cell and its result are frozen dataclasses of plain values; together they are one line of a CSV file. A cell
whose line is there already is not run again, so an interrupted table goes on where it stopped.
"""

from __future__ import annotations

import csv
import ctypes
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, fields
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from wire.errors import ConfigurationError, ConsiliumError

CellT = TypeVar("CellT")
ResultT = TypeVar("ResultT")

_PR_SET_PDEATHSIG = 1
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Table(Generic[CellT, ResultT]):
    """A CSV file whose lines are cells and their results."""

    path: Path
    cell: type[CellT]
    result: type[ResultT]

    def read(self) -> dict[CellT, ResultT]:
        """What is known so far; ConfigurationError if the file holds another table."""
        if not self.path.exists():
            return {}
        with self.path.open(newline="", encoding="utf-8") as file:
            lines = csv.DictReader(file)
            if lines.fieldnames is not None and tuple(lines.fieldnames) != self.columns:
                raise ConfigurationError(
                    f"{self.path} has other columns than this experiment writes.",
                    "Move it away, or name another folder with --out.",
                )
            # A line cut off by a crash has fewer values; that cell is run again.
            whole = [line for line in lines if None not in line.values()]
        return {_parsed(self.cell, line): _parsed(self.result, line) for line in whole}

    def append(self, cell: CellT, result: ResultT) -> None:
        """One more line, on disk when this returns."""
        values = [
            _text(getattr(part, name))
            for part, kind in ((cell, self.cell), (result, self.result))
            for name in _names(kind)
        ]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+", newline="", encoding="utf-8") as file:
            lines = csv.writer(file, lineterminator="\n")
            file.seek(0)
            before = file.read()
            if not before:
                lines.writerow(self.columns)
            elif not before.endswith("\n"):
                file.write("\n")
            lines.writerow(values)
            file.flush()
            os.fsync(file.fileno())

    @property
    def columns(self) -> tuple[str, ...]:
        """The header line: fields of the cell, then of the result."""
        return (*_names(self.cell), *_names(self.result))


@dataclass(frozen=True)
class Failure(Generic[CellT]):
    """A cell that could not be computed, and why."""

    cell: CellT
    sentence: str


def run(
    table: Table[CellT, ResultT],
    cells: Sequence[CellT],
    work: Callable[[CellT], ResultT],
    console: Console,
    *,
    workers: int | None = None,
    title: str = "cells",
) -> list[Failure[CellT]]:
    """Computes the cells the table lacks; returns those that failed.

    `work` must be importable (a function of a module, or a partial of one): it runs in other processes, one
    thread each. On Ctrl-C nothing new is begun, and what was computed is in the table.
    """
    known = table.read()
    missing = [cell for cell in cells if cell not in known]
    if len(missing) < len(cells):
        console.print(f"{len(cells) - len(missing)} of {len(cells)} {title} are in {table.path}.")
    if not missing:
        return []
    with _processes(min(workers or os.cpu_count() or 1, len(missing))) as pool:
        running = {pool.submit(work, cell): cell for cell in missing}
        return list(_collected(table, running, console, title))


def _collected(
    table: Table[CellT, ResultT],
    running: Mapping[Future[ResultT], CellT],
    console: Console,
    title: str,
) -> Iterator[Failure[CellT]]:
    """Writes every result when it is there, and yields what failed."""
    with _progress(console) as bar:
        shown = bar.add_task(title, total=len(running))
        for future in as_completed(running):
            failure = _settle(table, running[future], future)
            if failure is not None:
                console.print(f"[red]failed[/] {failure.cell}: {failure.sentence}")
                yield failure
            bar.advance(shown)


@contextmanager
def _processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes of one thread each; left early (Ctrl-C, a full disk), what waits is dropped and nothing is awaited."""
    for variable in _THREADS:
        os.environ[variable] = "1"
    # Fresh processes: a fork would inherit the threads of libraries already loaded here.
    pool = ProcessPoolExecutor(count, get_context("spawn"), initializer=_begin_worker)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _begin_worker() -> None:
    """Ctrl-C ends a worker at once, and so does the end of the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _settle(
    table: Table[CellT, ResultT], cell: CellT, future: Future[ResultT]
) -> Failure[CellT] | None:
    try:
        result = future.result()
    except BrokenProcessPool:
        return Failure(
            cell, "its process ended (memory may have run out); run the same command again"
        )
    except ConsiliumError as error:
        return Failure(cell, f"{error.sentence} {error.hint}".strip())
    except Exception as error:
        # One cell's bug must not cost the hours the others took.
        return Failure(cell, f"{type(error).__name__}: {error}")
    table.append(cell, result)
    return None


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


def _parsed(kind: type[Any], line: dict[str, str]) -> Any:
    """A dataclass from text, each field read by its type; empty text is None where it may be."""
    return kind(**{one.name: _value(str(one.type), line[one.name]) for one in fields(kind)})


def _value(annotation: str, text: str) -> object:
    names = [name.strip() for name in annotation.split("|")]
    if text == "" and "None" in names:
        return None
    for name in names:
        if name in _READERS:
            return _READERS[name](text)
    raise TypeError(f"a table cannot hold {annotation}")


_READERS: dict[str, Callable[[str], object]] = {
    "bool": lambda text: text == "True",
    "int": int,
    "float": float,
    "str": str,
}


def _text(value: object) -> str:
    # repr keeps every digit of a float, so that a cell read back equals the one written.
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)
