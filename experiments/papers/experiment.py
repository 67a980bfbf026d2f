"""What a table of a paper is, whoever measures it: cells to run, and lines that set ours beside the paper's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np
from matplotlib.figure import Figure


class Cell(Protocol):
    """One run: a frozen dataclass of plain values, all that decides its result."""

    @property
    def seed(self) -> int:
        """Which split and which draws; 0 … seeds−1."""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """What every result has; `seconds` of computing are filled in by `timed`."""

    seconds: float = 0.0


CellT = TypeVar("CellT", bound=Cell)
ResultT = TypeVar("ResultT", bound=Timed)


@dataclass(frozen=True)
class Line:
    """A number of the paper, ours, and what counts as success."""

    where: tuple[str, ...]
    """The line's place in the table; as many words as the experiment has `columns`."""
    ours: tuple[float, ...]
    """One value per seed; a line without any is left out."""
    paper: float | None = None
    least: float | None = None
    """The mean that counts as success; None for what is only shown beside."""
    beside: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """More columns: header → values, whose mean is shown. Every line has the same ones."""
    why: str = ""
    """Why we fall short, in a sentence; shown only if we do."""

    @property
    def mean(self) -> float:
        """Ours."""
        return float(np.mean(self.ours))

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None if there is none."""
        return None if self.least is None else self.mean >= self.least

    @property
    def name(self) -> str:
        """The line in words."""
        return ", ".join(self.where)


@dataclass(frozen=True)
class Experiment(Generic[CellT, ResultT]):
    """One table."""

    name: str
    """As in the registry."""
    title: str
    paper: str
    """Which paper, which table, which page of settings."""
    success: str
    """What counts as success, in a sentence."""
    about: str
    """How it was run and what differs from the paper: Markdown."""
    columns: tuple[str, ...]
    """What the words of `Line.where` are."""
    cell: type[CellT]
    result: type[ResultT]
    cells: Callable[[int, bool], Sequence[CellT]]
    """(seeds, quick) → every run; seeds outermost, so that an unfinished table is balanced."""
    measure: Callable[[CellT, Path | None], ResultT]
    """Runs a cell; the path is the folder of data sets. A function of a module: it runs in other processes."""
    lines: Callable[[Mapping[CellT, ResultT]], Sequence[Line]]
    """The table, from the results there are."""
    figure: Callable[[Sequence[Line]], Figure]
    datasets: tuple[str, ...] = ()
    """Data sets it reads from the folder: looked for before anything runs."""
    value: str = "test accuracy"
    """What `ours` and `paper` are."""

    def current(
        self, results: Mapping[CellT, ResultT], quick: bool
    ) -> tuple[dict[CellT, ResultT], int]:
        """Results of runs as they are set up today, in the order of the table, and how many are missing.

        A file may also hold runs of other settings: they are not mixed in.
        """
        seeds = max((cell.seed for cell in results), default=-1) + 1
        wanted = self.cells(seeds, quick)
        found = {cell: results[cell] for cell in wanted if cell in results}
        return found, len(wanted) - len(found)

    def table(self, results: Mapping[CellT, ResultT]) -> list[Line]:
        """The lines that have a value."""
        return [line for line in self.lines(results) if line.ours]


def timed(
    cell: CellT, *, measure: Callable[[CellT, Path | None], ResultT], folder: Path | None
) -> ResultT:
    """The result, with the processor's seconds it took: others on the machine do not count."""
    start = time.process_time()
    result = measure(cell, folder)
    return replace(result, seconds=round(time.process_time() - start, 1))


def by_seed(
    results: Mapping[CellT, ResultT],
    chosen: Callable[[CellT], bool],
    value: Callable[[ResultT], float | None],
) -> tuple[float, ...]:
    """`value` of every chosen run, in the order of their seeds; runs without one are left out."""
    found = sorted(
        ((cell.seed, value(result)) for cell, result in results.items() if chosen(cell)),
        key=lambda pair: pair[0],
    )
    return tuple(number for _, number in found if number is not None)
