"""`docs/results.md`: every target of every table, met or not, and links to the pages."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.harness import Table
from experiments.papers.experiment import Experiment, Line
from experiments.papers.report import difference, number, shown, verdict
from experiments.tables import markdown
from wire.errors import ConfigurationError
from wire.runtime.files import write_atomically

_KINDS = ("md", "csv", "png")


@dataclass(frozen=True)
class Gathered:
    """An experiment whose results are there."""

    experiment: Experiment[Any, Any]
    lines: list[Line]


def gather(
    names: Iterable[str], find: Callable[[str], Experiment[Any, Any]], source: Path, docs: Path
) -> tuple[Path, list[str]]:
    """Copies what `source` holds of each experiment to `docs/results` and writes the index beside it.

    Returns the index and the names found. One whose page, numbers or plot are missing is left as `docs` has it.
    """
    place = docs / "results"
    found = [name for name in names if _copied(name, source, place)]
    present = [find(name) for name in names if (place / f"{name}.csv").is_file()]
    known = [Gathered(experiment, _lines(experiment, place)) for experiment in present]
    if not known:
        raise ConfigurationError(
            f"{source} holds no finished experiment.",
            "Run one first: consilium experiment --help lists them.",
        )
    index = docs / "results.md"
    write_atomically(index, text(known).encode())
    return index, found


def _copied(name: str, source: Path, place: Path) -> bool:
    """Copies an experiment's files, if all of them are there."""
    files = [source / f"{name}.{kind}" for kind in _KINDS]
    if not all(path.is_file() for path in files):
        return False
    place.mkdir(parents=True, exist_ok=True)
    for path in files:
        shutil.copyfile(path, place / path.name)
    return True


def _lines(experiment: Experiment[Any, Any], place: Path) -> list[Line]:
    known = Table(place / f"{experiment.name}.csv", experiment.cell, experiment.result).read()
    return experiment.table(experiment.current(known, False)[0])


def text(known: list[Gathered]) -> str:
    """The index."""
    judged = [(one.experiment, line) for one in known for line in one.lines if line.met is not None]
    met = sum(line.met is True for _, line in judged)
    rows = [
        [
            _link(experiment),
            line.name,
            number(line.paper),
            shown(line.ours),
            difference(line),
            f"≥ {number(line.least)}",
            verdict(line),
        ]
        for experiment, line in judged
    ]
    pages = [
        f"- {_link(one.experiment)}: {one.experiment.title}. {one.experiment.success}"
        for one in known
    ]
    return "\n".join(
        [
            "# The papers' tables, measured again\n",
            f"**{met} of {len(judged)} targets are met.** Each page has the whole table, its plot, the command, the date, the size "
            "of the machine, and why we fall short where we do. The data sets are public and not part of this repository. "
            "Written by `consilium experiment results --from DIR`.\n",
            markdown(
                ["experiment", "what", "paper", "ours", "difference", "target", "met"],
                rows,
                words=2,
            ),
            "## Pages\n",
            *pages,
            "",
        ]
    )


def _link(experiment: Experiment[Any, Any]) -> str:
    return f"[{experiment.name}](results/{experiment.name}.md)"
