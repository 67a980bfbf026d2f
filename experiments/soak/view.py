"""What a person sees of a soak: a live bar on a terminal, lines elsewhere, a table at the end, a plot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import matplotlib
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from experiments.live_display import LiveDisplay
from experiments.soak.memory import Growth, Memory, Sample
from experiments.soak.outcome import Outcome
from experiments.soak.schedule import KILLS, FaultKind
from wire.runtime.terminal import size

_LINES = 20
_MARKS = {True: "[green]kept[/]", False: "[bold red]broken[/]", None: "[dim]too short to tell[/]"}
_STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.hashsalt": "consilium",
}


class View(Protocol):
    """Where a soak tells how far it is."""

    def tell(self, doing: str) -> None:
        """Says what is being done."""

    def rounds(self, closed: int, faults: Mapping[FaultKind, int], memory: Memory) -> None:
        """Says how many rounds are closed and what has happened so far."""


class LiveView(LiveDisplay):
    """A progress bar on a terminal; elsewhere a line for every twentieth of the rounds."""

    def __init__(self, console: Console, rounds: int) -> None:
        self._console = console
        self._every = max(1, rounds // _LINES)
        self._told = -1
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[faults]}[/]"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=rounds, faults="")
        super().__init__(self._progress)

    def tell(self, doing: str) -> None:
        """Changes the bar's words."""
        self._progress.update(self._task, description=doing)
        if not self._console.is_terminal:
            self._console.print(doing)

    def rounds(self, closed: int, faults: Mapping[FaultKind, int], memory: Memory) -> None:
        """Moves the bar."""
        kills = sum(faults.get(kind, 0) for kind in KILLS)
        coordinator = memory.of(["coordinator"])
        mib = f", coordinator {coordinator[-1].mib:.0f} MiB" if coordinator else ""
        words = f"{kills} kills, {sum(faults.values()) - kills} line faults{mib}"
        self._progress.update(self._task, completed=closed, faults=words)
        if not self._console.is_terminal and closed // self._every > self._told:
            self._told = closed // self._every
            self._console.print(f"round {closed}: {words}")


def print_outcome(outcome: Outcome, console: Console) -> None:
    """The numbers and the promises."""
    numbers = Table(title="Soak", title_justify="left", show_header=False)
    happened = {str(kind): outcome.faults.get(kind, 0) for kind in FaultKind}
    for name, value in {
        "silos, rounds, seed": f"{outcome.silos}, {outcome.rounds}, {outcome.seed}",
        "time": f"{outcome.seconds:.0f} s",
        **happened,
        "connections an agent made anew": outcome.reconnects,
        "ballots sent again": outcome.ballots_sent_again,
        "relayed": size(outcome.relayed_bytes),
        **{f"memory of {name}": _words(found) for name, found in outcome.growths.items()},
    }.items():
        numbers.add_row(name, str(value))
    console.print(numbers)
    for promise, held in outcome.promises.items():
        console.print(f"{_MARKS[held]}  {promise}")
    if outcome.first_difference is not None:
        console.print(f"The consensus differs from round {outcome.first_difference} on.")


def _words(found: Growth) -> str:
    if found.slope is None or found.steepest is None:
        return f"at most {found.mib:.0f} MiB; no life was long enough for a slope"
    return (
        f"at most {found.mib:.0f} MiB; slope {found.slope * 1024:+.1f} KiB per round "
        f"(steepest {found.steepest * 1024:+.1f}; {found.lives} lives, "
        f"the longest of {found.longest} rounds)"
    )


def write_plot(outcome: Outcome, path: Path) -> None:
    """Resident memory over rounds, a line for each life, as SVG."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(9, 6), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        _draw(above, outcome.memory.of(["coordinator"]), "#0b7a75", 1.6)
        _draw(below, outcome.memory.of(outcome.agents), "#33415c", 0.7)
        above.set_title("coordinator", loc="left")
        below.set_title(f"{outcome.silos} agents", loc="left")
        below.set_xlabel("round; a line ends where its process was killed")
        for axes in (above, below):
            axes.set_ylabel("resident MiB")
            axes.set_ylim(bottom=0)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _draw(axes: Any, samples: list[Sample], colour: str, width: float) -> None:
    lives: dict[tuple[str, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        lives[sample.process, sample.life].append(sample)
    for life in lives.values():
        axes.plot([s.round for s in life], [s.mib for s in life], color=colour, lw=width, alpha=0.7)
