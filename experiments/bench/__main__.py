"""`python -m experiments.bench`: every measurement in one table; exit status 1 if a promise is not kept."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from experiments.bench import Measurement, rounds, tally
from experiments.terminal import console
from wire.runtime.terminal import JsonFlag, print_json


def bench(
    as_json: JsonFlag = False,
    silos: Annotated[
        list[int] | None, typer.Option(help="Silos of a federation; repeat for several.", min=1)
    ] = None,
) -> None:
    """Measure what was promised: tally, ballot sizes, round overhead, memory."""
    with _progress() as tell:
        tell("counting ballots")
        found = [*tally.run(), *rounds.run(tuple(silos or rounds.LIMITS_MS), tell=tell)]
    if as_json:
        print_json({"measurements": [asdict(measurement) for measurement in found]})
    else:
        console.print(report(found))
    if any(measurement.met is False for measurement in found):
        raise typer.Exit(1)


def report(found: list[Measurement]) -> Table:
    """Measurements as a person reads them."""
    table = Table(title="Benchmarks", title_justify="left")
    table.add_column("what")
    table.add_column("measured", justify="right")
    table.add_column("promised", justify="right")
    table.add_column("kept")
    for measurement in found:
        table.add_row(
            measurement.name,
            f"{_number(measurement.value)} {measurement.unit}",
            f"{measurement.target} {measurement.unit}" if measurement.target else "–",
            {True: "[green]yes[/]", False: "[bold red]no[/]", None: "–"}[measurement.met],
        )
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.3g}"


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """What is being done, on standard error: a spinner on a terminal, else a line each."""
    errors = Console(stderr=True, highlight=False)
    if not sys.stderr.isatty():
        yield lambda doing: errors.print(f"{doing} …")
        return
    with errors.status("") as status:
        yield lambda doing: status.update(f"{doing} …")


if __name__ == "__main__":
    typer.run(bench)
