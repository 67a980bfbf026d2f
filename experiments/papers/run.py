"""Runs a table and writes its files: numbers at once, page and plot at the end."""

from __future__ import annotations

from datetime import date
from functools import partial
from pathlib import Path

from rich.console import Console

from experiments import harness
from experiments.data import require_files
from experiments.papers.experiment import CellT, Experiment, ResultT, timed
from experiments.papers.report import Machine, Run, file_name, write


def run_experiment(
    experiment: Experiment[CellT, ResultT],
    console: Console,
    *,
    seeds: int,
    quick: bool,
    folder: Path | None,
    out: Path,
    workers: int | None = None,
) -> int:
    """Computes the cells `out` lacks, then writes page and plot; returns how many cells failed."""
    for dataset in experiment.datasets:
        require_files(dataset, folder)
    path = out / f"{file_name(experiment.name, quick)}.csv"
    table = harness.Table(path, experiment.cell, experiment.result)
    cells = experiment.cells(seeds, quick)
    work = partial(timed, measure=experiment.measure, folder=folder)
    failures = harness.run(table, cells, work, console, workers=workers, title=experiment.name)
    known = table.read()
    if known:
        run = Run(command(experiment, seeds, quick), date.today(), Machine.here(), quick)
        page, plot = write(experiment, known, run, out)
        console.print(f"Numbers: {path}  Table: {page}  Plot: {plot}")
    return len(failures)


def command(experiment: Experiment[CellT, ResultT], seeds: int, quick: bool) -> str:
    """What a person types to get the same page."""
    data = " --data DIR" if experiment.datasets else ""
    return f"consilium experiment {experiment.name}{data} --seeds {seeds}" + (
        " --quick" if quick else ""
    )
