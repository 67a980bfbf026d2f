"""A table's page: paper, ours, difference, met or not; then how, with which command, and on what machine."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from experiments.papers.experiment import CellT, Experiment, Line, ResultT
from experiments.tables import markdown, mean_and_error, write_page


@dataclass(frozen=True)
class Machine:
    """How large a machine is; never which."""

    cores: int
    memory: int
    """GiB."""

    @classmethod
    def here(cls) -> Machine:
        """This one."""
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return cls(os.cpu_count() or 1, round(memory / 2**30))


@dataclass(frozen=True)
class Run:
    """What was asked for, when and where."""

    command: str
    day: date
    machine: Machine
    quick: bool = False


def write(
    experiment: Experiment[CellT, ResultT],
    results: Mapping[CellT, ResultT],
    run: Run,
    out: Path,
) -> tuple[Path, Path]:
    """Writes the page and the plot into `out`; returns their paths."""
    found, missing = experiment.current(results, run.quick)
    lines = experiment.table(found)
    name = file_name(experiment.name, run.quick)
    page = text(experiment, found, lines, missing, run)
    return write_page(out, name, page, lambda: experiment.figure(lines))


def file_name(name: str, quick: bool) -> str:
    """A first look has files of its own: it never replaces what took hours."""
    return f"{name}-quick" if quick else name


def text(
    experiment: Experiment[CellT, ResultT],
    results: Mapping[CellT, ResultT],
    lines: Sequence[Line],
    missing: int,
    run: Run,
) -> str:
    """The page."""
    seeds = len({cell.seed for cell in results})
    minutes = sum(result.seconds for result in results.values()) / 60
    parts = [
        f"# {experiment.title}\n",
        f"{experiment.paper}\n",
        *_verdicts(experiment, lines, run.quick),
        *([f"{missing} of {missing + len(results)} runs are missing here.\n"] if missing else []),
        table(experiment.columns, lines),
        f"Values are {experiment.value}: the mean over {_count(seeds, 'seed')} ± its standard error. "
        "A difference is ours minus the paper's.\n",
        f"![{experiment.title}]({file_name(experiment.name, run.quick)}.png)\n",
        *_shortfalls(lines),
        f"## How\n\n{experiment.about.strip()}\n",
        f"```\n{run.command}\n```\n",
        f"{run.day.isoformat()}, {_count(run.machine.cores, 'core')}, {run.machine.memory} GiB of memory, no GPU used; "
        f"{_count(seeds, 'seed')}, {minutes:.0f} minutes of one core in all.\n",
    ]
    return "\n".join(parts)


def _verdicts(
    experiment: Experiment[CellT, ResultT], lines: Sequence[Line], quick: bool
) -> Iterator[str]:
    judged = [line.met for line in lines if line.met is not None]
    if quick:
        yield "**A quick look**, smaller than the real run: no number here is a result.\n"
    yield f"**Success:** {experiment.success} **Met: {sum(judged)} of {len(judged)}.**\n"


def _shortfalls(lines: Sequence[Line]) -> Iterator[str]:
    if short := [line for line in lines if line.met is False]:
        yield "## Where we fall short\n"
        yield "\n".join(_shortfall(line) for line in short) + "\n"


def table(columns: Sequence[str], lines: Sequence[Line]) -> str:
    """Paper, ours, difference, target, met; then what is shown beside."""
    beside = list(lines[0].beside) if lines else []
    rows = [
        [
            *line.where,
            number(line.paper),
            shown(line.ours),
            difference(line),
            "–" if line.least is None else f"≥ {number(line.least)}",
            verdict(line),
            *(shown(line.beside[name]) for name in beside),
        ]
        for line in lines
    ]
    header = [*columns, "paper", "ours", "difference", "target", "met", *beside]
    return markdown(header, rows, words=len(columns))


def number(value: float | None) -> str:
    """Up to four digits, as papers have them; a dash for none."""
    if value is None:
        return "–"
    short = f"{value:.4f}".rstrip("0")
    whole, _, digits = short.partition(".")
    return f"{whole}.{digits:0<2}"


def shown(values: Sequence[float]) -> str:
    """Mean ± standard error; a dash for none."""
    if not values:
        return "–"
    mean, error = mean_and_error(values)
    return f"{mean:.3f}" if math.isnan(error) else f"{mean:.3f} ± {error:.3f}"


def difference(line: Line) -> str:
    """Ours minus the paper's."""
    return "–" if line.paper is None else f"{line.mean - line.paper:+.3f}"


def verdict(line: Line) -> str:
    """Met or not."""
    return {True: "yes", False: "**no**", None: "–"}[line.met]


def _shortfall(line: Line) -> str:
    below = f"{line.mean:.3f} where {number(line.least)} is the target"
    return f"- **{line.name}**: {below}. {line.why}".rstrip()


def _count(amount: int, word: str) -> str:
    return f"{amount} {word}" + ("" if amount == 1 else "s")
