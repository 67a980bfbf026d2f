"""A plan as a person sees it: a table, sentences, a plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

import yaml
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from silo_agent.trainer.explain.costs import encoding_for
from silo_agent.trainer.planner.plan import Entry, Measured, Plan
from wire.errors import ConfigurationError
from wire.privacy.declaration import PICO
from wire.runtime.terminal import cell, say

_INK, _FAINT, _BEST, _OTHER = "#1d2733", "#8a94a3", "#0b7a75", "#33415c"
_STYLE: Final[dict[Any, Any]] = {
    "font.size": 11,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    # The same values give the same file.
    "svg.hashsalt": "consilium",
}
_FORMATS: Final = (".png", ".svg", ".pdf")


class Progress:
    """A bar that counts trials; on anything but a terminal it is silent."""

    def __init__(self, console: Console) -> None:
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, doing: str, steps: int) -> None:
        """Starts anew with so many steps ahead."""
        self._bar.reset(self._task, description=doing, total=steps)

    def step(self) -> None:
        """One more step is done."""
        self._bar.advance(self._task)


def print_plan(plan: Plan, console: Console) -> None:
    """Prints table, warnings, recommendation and the assumptions it rests on."""
    best = plan.recommended
    console.print(_plan_table(plan, best))
    say(
        "[dim]rows: answered by each silo; ε: of the whole task, by the accountant; ±: standard error[/]",
        to=console,
    )
    for entry in plan.entries:
        if entry.unfit:
            say("[bold]{}[/] cannot serve: {}.", entry.name, entry.unfit, to=console)
    for warning in plan.warnings:
        say("[bold yellow]warning[/]  {}", warning, to=console)
    say("[bold]{}[/]", plan.advice, to=console)
    if best is not None:
        say("In silo.yaml:\n{}", Text(silo_yaml(plan, best)), to=console)
        say("In task.yaml:\nencoding: {}", encoding_for(best.settings), to=console)
    say("{}", plan.question.certainty.sentence, to=console)
    for note in plan.notes:
        say("[dim]{}[/]", note, to=console)


def _plan_table(plan: Plan, best: Entry | None) -> Table:
    asked = plan.question
    table = Table(
        title=f"What ε = {asked.epsilon:g}, δ = {asked.delta:g} buys: {asked.silos} silos × "
        f"{asked.rows_per_silo} patients, {asked.public_rows} public rows, {asked.classes} classes, "
        f"{asked.rounds} round{'s' if asked.rounds > 1 else ''}",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    for column in ("mechanism", "noise", "rows", "ε", "labels right", "at home"):
        noise = column == "noise"
        table.add_column(column, no_wrap=not noise, min_width=11 if noise else None)
    for entry in plan.entries:
        style = "bold" if entry is best else "dim" if entry.unfit else None
        table.add_row(*map(cell, _cells(entry)), style=style)
    table.add_section()
    table.add_row("guessing", "", "", "", f"{asked.chance:.1%}", "", style="dim")
    table.add_row("each silo alone", "", "", "0", "", str(plan.local), style="dim")
    table.add_row("all rows pooled", "", "", "∞", "", str(plan.pooled), style="dim")
    return table


def print_curve(curve: tuple[Plan, ...], console: Console) -> None:
    """How right the labels, and a silo's own model, are, by mechanism and ε."""
    table = Table(
        title="Labels right / at home in %, by ε of the whole task",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("mechanism", no_wrap=True)
    for step in curve:
        table.add_column(f"{step.question.epsilon:g}", no_wrap=True)
    for name in _curve_names(curve):
        entries = [entry for step in curve for entry in step.entries if entry.name == name]
        cells = [f"{_percentage(entry.labels)}/{_percentage(entry.home)}" for entry in entries]
        table.add_row(name, *cells)
    console.print(table)


def _percentage(measured: Measured | None) -> str:
    return "–" if measured is None else f"{100 * measured.mean:.1f}"


def silo_yaml(plan: Plan, entry: Entry) -> str:
    """The `privacy:` section that does what the entry says."""
    lines = entry.lines
    mechanism = lines if len(lines) > 1 else lines["name"]
    section = {
        "mechanism": mechanism,
        "epsilon": plan.question.epsilon,
        # silo.yaml wants a δ above 0; the least one the wire can carry changes nothing here.
        "delta": max(plan.question.delta, 1 / PICO),
    }
    return yaml.safe_dump({"privacy": section}, sort_keys=False).rstrip()


def check_plot(path: Path) -> None:
    """ConfigurationError if `write_plot` could not write there; asked before the work is done."""
    if path.suffix not in _FORMATS:
        raise ConfigurationError(
            f"{path} is no plot this can write.", f"Let its name end in {', '.join(_FORMATS)}."
        )
    if not path.parent.is_dir():
        raise ConfigurationError(f"There is no folder {path.parent}.", "Make it first.")
    if find_spec("matplotlib") is None:
        raise ConfigurationError(
            "A plot needs matplotlib, which is not installed.",
            'Install it with `pip install "consilium[demo]"`, or leave out --plot.',
        )


def write_plot(plan: Plan, path: Path, curve: tuple[Plan, ...] = ()) -> None:
    """How right the labels and the silos' models are, by mechanism; with `curve`, also over ε."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(13 if curve else 8, 4.6), layout="constrained")
        panels = figure.subplots(1, 2 if curve else 1, squeeze=False)[0]
        _draw_entries(panels[0], plan)
        if curve:
            _draw_curve(panels[1], plan, curve)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        try:
            figure.savefig(path, metadata=metadata, dpi=150)
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be written: {error.strerror}.") from None


def _cells(entry: Entry) -> tuple[str, ...]:
    if entry.unfit:
        return (entry.name, "cannot serve", "–", "–", "–", "–")
    epsilon = "∞" if math.isinf(entry.epsilon) else f"{entry.epsilon:.3g}"
    return (
        entry.name,
        entry.level,
        str(entry.rows),
        f"{epsilon} (estimate)" if entry.estimate else epsilon,
        str(entry.labels) if entry.labels else "–",
        str(entry.home) if entry.home else "–",
    )


def _references(axes: Any, plan: Plan, line: str) -> None:
    """Guessing, alone and pooled; `line` is axhline or axvline."""
    for value, label, style in (
        (plan.question.chance, "guessing", ":"),
        (plan.local.mean, "each silo alone", "--"),
        (plan.pooled.mean, "all rows pooled", "-."),
    ):
        getattr(axes, line)(value, color=_FAINT, linestyle=style, lw=1.2, label=label, zorder=0)


def _draw_entries(axes: Any, plan: Plan) -> None:
    shown = [entry for entry in plan.entries if entry.home is not None]
    _references(axes, plan, "axvline")
    labels, home = [entry.labels for entry in shown], [entry.home for entry in shown]
    _draw_series(axes, labels, -0.14, label="labels right", fmt="s", color=_OTHER)
    _draw_series(axes, home, 0.14, label="a silo's own model right", fmt="o", color=_BEST)
    axes.set_yticks(range(len(shown)), [_marked(entry) for entry in shown])
    axes.invert_yaxis()
    _percent(axes.xaxis)
    axes.set_xlim(0, 1)
    axes.set_xlabel("right; bars are one standard error")
    axes.set_title(f"ε = {plan.question.epsilon:g} for the whole task")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, fontsize=9)


def _draw_series(axes: Any, values: Sequence[Measured | None], shift: float, **style: str) -> None:
    """One marker with error bar per value that is known, `shift` away from its line."""
    known = [(place, value) for place, value in enumerate(values) if value is not None]
    axes.errorbar(
        [value.mean for _, value in known],
        [place + shift for place, _ in known],
        xerr=[value.error for _, value in known],
        capsize=3,
        **style,
    )


def _draw_curve(axes: Any, plan: Plan, curve: tuple[Plan, ...]) -> None:
    _references(axes, plan, "axhline")
    for name in _curve_names(curve):
        points = [
            (step.question.epsilon, entry.labels)
            for step in curve
            for entry in step.entries
            if entry.name == name and entry.labels is not None
        ]
        axes.errorbar(
            [epsilon for epsilon, _ in points],
            [labels.mean for _, labels in points],
            yerr=[labels.error for _, labels in points],
            marker="o",
            capsize=3,
            label=name,
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks([step.question.epsilon for step in curve])
    axes.xaxis.set_major_formatter("{x:g}")
    _percent(axes.yaxis)
    axes.set_xlabel("ε of the whole task")
    axes.set_ylabel("labels right")
    axes.set_ylim(0, 1)
    axes.set_title("What a larger budget buys")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, fontsize=9)


def _curve_names(curve: tuple[Plan, ...]) -> list[str]:
    """The mechanisms for which ε means something."""
    entries = [entry for step in curve for entry in step.entries if not entry.unfit]
    return list(dict.fromkeys(entry.name for entry in entries if math.isfinite(entry.epsilon)))


def _percent(axis: Any) -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1, decimals=0))


def _marked(entry: Entry) -> str:
    return f"{entry.name} (no privacy)" if math.isinf(entry.epsilon) else entry.name
