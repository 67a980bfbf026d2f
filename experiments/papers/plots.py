"""Plots of a table: the paper's numbers and ours, line by line or as curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from experiments.papers.experiment import Line
from experiments.tables import COLOURS, FAINT, INK, mean_and_error

OURS, PAPER, SHORT = COLOURS[0], INK, COLOURS[1]
_BESIDE = ("o", "s", "^", "v")


def dots(lines: Sequence[Line], value: str = "test accuracy", beside: bool = True) -> Figure:
    """A line of dots per number, in panels by its first word: ours with its error, the paper's, the target.

    What is shown beside is drawn too, unless it is of another kind.
    """
    panels: dict[str, list[Line]] = {}
    for line in lines:
        panels.setdefault(line.where[0], []).append(line)
    heights = [len(panel) + 0.6 for panel in panels.values()]
    drawing = Figure(figsize=(7.6, 0.32 * sum(heights) + 0.5 * len(heights) + 1.0))
    drawing.set_layout_engine("constrained")
    grid = drawing.subplots(len(panels), 1, squeeze=False, sharex=True, height_ratios=heights)
    for axes, (name, panel) in zip(grid[:, 0], panels.items(), strict=True):
        _panel(axes, name, panel, beside)
    grid[-1, 0].set_xlabel(value)
    _legend(drawing)
    return drawing


def dots_of(value: str) -> partial[Figure]:
    """`dots` for another value than accuracy, without what is shown beside."""
    return partial(dots, value=value, beside=False)


def _panel(axes: Axes, name: str, lines: Sequence[Line], beside: bool) -> None:
    axes.set_title(name)
    for height, line in enumerate(lines):
        mean, error = mean_and_error(line.ours)
        colour = SHORT if line.met is False else OURS
        if line.paper is not None:
            axes.plot([line.paper, mean], [height, height], color=FAINT, linewidth=1, zorder=1)
            axes.plot(
                line.paper, height, "D", mfc="white", mec=PAPER, ms=6, label="paper", zorder=3
            )
        if line.least is not None:
            axes.plot(line.least, height, "|", color=INK, ms=12, mew=1.4, label="target", zorder=2)
        for marker, (header, values) in zip(_BESIDE, line.beside.items(), strict=False):
            if values and beside:
                where = mean_and_error(values)[0]
                axes.plot(where, height, marker, color=FAINT, ms=4, label=header, zorder=2)
        axes.errorbar(
            mean,
            height,
            xerr=None if math.isnan(error) else error,
            fmt="o",
            color=colour,
            markersize=7,
            capsize=3,
            label="ours, below the target" if line.met is False else "ours",
            zorder=4,
        )
    axes.set_yticks(range(len(lines)), [", ".join(line.where[1:]) or line.name for line in lines])
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.grid(axis="x", color=FAINT, alpha=0.25, linewidth=0.6)
    axes.tick_params(axis="y", length=0)


def curves(lines: Sequence[Line], across: str, value: str = "test accuracy") -> Figure:
    """A curve per first word over the second, a number on a logarithmic scale; the paper's as diamonds."""
    drawing = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = drawing.subplots()
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(line.where[0], []).append(line)
    for colour, (name, group) in zip(COLOURS, groups.items(), strict=False):
        points = [mean_and_error(line.ours) for line in group]
        axes.errorbar(
            [_amount(line) for line in group],
            [mean for mean, _ in points],
            [0.0 if math.isnan(error) else error for _, error in points],
            fmt="o-",
            color=colour,
            markersize=5,
            capsize=3,
            label=name,
        )
        for line in group:
            if line.paper is not None:
                axes.plot(_amount(line), line.paper, "D", mfc="white", mec=colour, label="paper")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(sorted({_amount(line) for line in lines})))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda amount, _: f"{amount:g}"))
    axes.set_xlabel(across)
    axes.set_ylabel(value)
    axes.grid(color=FAINT, alpha=0.25, linewidth=0.6)
    _legend(drawing)
    return drawing


def curves_over(across: str, value: str = "test accuracy") -> partial[Figure]:
    """`curves` with its axes named."""
    return partial(curves, across=across, value=value)


def _amount(line: Line) -> float:
    return float(line.where[1].replace("\u202f", ""))


def _legend(drawing: Figure) -> None:
    """Every label once, below the panels: one of them may lack what another has."""
    handles = {
        label: handle
        for axes in drawing.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    drawing.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)
