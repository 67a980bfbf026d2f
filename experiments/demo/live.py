"""What a person sees while the demo runs: a live picture on a terminal, lines anywhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
)
from rich.spinner import Spinner
from rich.table import Table

from coordinator.cli.task_view import churn, waiting
from experiments.demo.hospitals import HOSPITALS, PUBLIC_ROWS
from experiments.live_display import LiveDisplay, Silent
from wire.consilium.v1 import admin_pb2, task_pb2


class Step(Enum):
    """The parts of the demo, in order."""

    CONSORTIUM = "Make the consortium: authority, coordinator"
    PUBLIC_SET = f"Publish {PUBLIC_ROWS} rows without labels, define the task"
    JOIN = "Hospitals join with one-time tokens"
    START = "Hospitals start agent and trainer"
    ROUNDS = "Rounds of votes"
    MODELS = "Hospitals export their models"
    SCORES = "Score alone, Consilium, pooled"
    REPORT = "Write the report"


class View(Protocol):
    """Where the demo tells how far it is."""

    def __enter__(self) -> Self:
        """Begins to show."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leaves the terminal as it was."""

    def advance(self, step: Step, who: str = "") -> None:
        """One more of the step's parts is done, by `who`."""

    def finish(self, step: Step) -> None:
        """The step is done, even if it had fewer parts than expected."""

    def show_task(self, update: admin_pb2.WatchTaskResponse, isolation: Mapping[str, str]) -> None:
        """The task as it stands, and how each hospital's trainer is kept from the network."""


def view_for(console: Console, max_rounds: int, clock: Callable[[], float]) -> View:
    """The view that suits where `console` writes; `clock` returns seconds."""
    parts = dict.fromkeys(Step, 1)
    parts |= dict.fromkeys((Step.JOIN, Step.START, Step.MODELS), len(HOSPITALS))
    parts[Step.ROUNDS] = max_rounds
    return LiveView(console, parts) if console.is_terminal else LineView(console, parts, clock)


class LiveView(LiveDisplay):
    """Progress bars, and below them the federation: who is connected, what it does, when the round closes."""

    def __init__(self, console: Console, parts: Mapping[Step, int]) -> None:
        self._progress = Progress(
            _Mark(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("[dim]{task.fields[who]}[/]"),
            console=console,
        )
        self._ids = {
            step: self._progress.add_task(step.value, total=total, who="", current=False)
            for step, total in parts.items()
        }
        self._point_at_current()
        self._panel: RenderableType = ""
        self._live = Live(
            console=console, get_renderable=lambda: Group(self._progress, self._panel)
        )
        super().__init__(self._live)

    def advance(self, step: Step, who: str = "") -> None:
        """Moves the step's bar."""
        self._progress.update(self._ids[step], advance=1, who=who)
        self._point_at_current()

    def finish(self, step: Step) -> None:
        """Fills the step's bar."""
        identity = self._ids[step]
        done = next(task.completed for task in self._progress.tasks if task.id == identity)
        self._progress.update(identity, total=done)
        self._point_at_current()

    def show_task(self, update: admin_pb2.WatchTaskResponse, isolation: Mapping[str, str]) -> None:
        """Redraws the federation."""
        self._panel = federation_panel(update, isolation)
        self._live.refresh()

    def _point_at_current(self) -> None:
        """The first unfinished step is under way, and so is every one of which a part is done."""
        unfinished = [task for task in self._progress.tasks if not task.finished]
        for task in unfinished:
            under_way = task is unfinished[0] or task.completed > 0
            self._progress.update(task.id, current=under_way)


class _Mark(ProgressColumn):
    """Done, under way, or still to come."""

    def __init__(self) -> None:
        super().__init__()
        self._spinner = Spinner("dots", style="green")

    def render(self, task: Task) -> RenderableType:
        """One character wide."""
        if task.finished:
            return "[green]✔[/]"
        return self._spinner.render(task.get_time()) if task.fields["current"] else "[dim]·[/]"


class LineView(LiveDisplay):
    """A line for every part done and for every change of the task."""

    def __init__(
        self, console: Console, parts: Mapping[Step, int], clock: Callable[[], float]
    ) -> None:
        super().__init__(Silent())
        self._console = console
        self._parts = dict(parts)
        self._done = dict.fromkeys(parts, 0)
        self._clock = clock
        self._began = clock()
        self._last = ""

    def advance(self, step: Step, who: str = "") -> None:
        """Says which part is done."""
        self._done[step] += 1
        # `show_task` says more of a round.
        if step is Step.ROUNDS:
            return
        total = self._parts[step]
        count = f" {self._done[step]}/{total}" if total > 1 else ""
        self._say(f"{step.value}{count}{f' ({who})' if who else ''}")

    def finish(self, step: Step) -> None:
        """Says in how many parts the step was done."""
        self._say(f"{step.value}: {self._done[step]} of at most {self._parts[step]}")

    def show_task(self, update: admin_pb2.WatchTaskResponse, isolation: Mapping[str, str]) -> None:
        """Says what is new about the task."""
        task = update.task
        connected = sum(silo.connected for silo in update.silos)
        if task.status == task_pb2.TASK_STATUS_DRAFT:
            line = f"connected {connected}/{len(update.silos)}"
        else:
            line = round_line(task)
        if line != self._last:
            self._last = line
            self._say(line)

    def _say(self, line: str) -> None:
        self._console.print(f"{self._clock() - self._began:6.1f} s  {line}")


def round_line(task: task_pb2.TaskState) -> str:
    """`round 2 of at most 5 · waiting 3/5, closes 14:05:10 · churn 1.1%`."""
    round_number = task.open_round.number or task.consensus.round
    most = task.definition.rounds.max_rounds
    return f"round {round_number} of at most {most} · {waiting(task)} · churn {churn(task)}"


def federation_panel(
    update: admin_pb2.WatchTaskResponse, isolation: Mapping[str, str]
) -> RenderableType:
    """The task in a line, and a row for each hospital."""
    task = update.task
    silos = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("hospital", "learner", "connected", "doing", "trainer's network"):
        silos.add_column(column, header_style="dim")
    by_name = {silo.name: silo for silo in update.silos}
    for hospital in HOSPITALS:
        silo = by_name.get(hospital.name, admin_pb2.Silo(name=hospital.name))
        silos.add_row(
            hospital.title,
            hospital.learner_title,
            "[green]yes[/]" if silo.connected else "no",
            doing(silo, task),
            network(isolation.get(hospital.name, "")),
        )
    if task.status == task_pb2.TASK_STATUS_DRAFT:
        head = "[bold]The task starts when every hospital is connected[/]"
    else:
        head = f"[bold]{round_line(task)}[/]"
    reason = [f"[dim]{task.reason}[/]"] if task.reason else []
    return Panel(Group(head, *reason, "", silos), expand=False, title="federation")


def doing(silo: admin_pb2.Silo, task: task_pb2.TaskState) -> str:
    """What a hospital does: a ballot says it first, its last heartbeat may be two seconds old."""
    if not silo.connected:
        return "–"
    if task.status == task_pb2.TASK_STATUS_FINISHED:
        return "final model"
    if silo.name in task.open_round.voted:
        return "[green]ballot is in[/]"
    return "[yellow]training[/]" if silo.name in task.open_round.expected else "waiting"


def network(isolation: str) -> str:
    """How a trainer is kept from the network, in a person's words."""
    return {
        "": "–",
        "own namespace": "none: own namespace",
        "container": "none: container without",
        "none": "[red]the host's[/] (no namespace allowed)",
    }[isolation]
