"""Plots of a table: the paper's numbers and ours, line by line or as curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.papers.experiment import Line
from experiments.tables import COLOURS, FAINT, INK, curve, legend_below, logarithmic, mean_and_error

OURS, PAPER, SHORT = COLOURS[0], INK, COLOURS[1]
_BESIDE = ("o", "s", "^", "v")


def dots(lines: Sequence[Line], value: str = "test accuracy", beside: bool = True) -> Figure:
    """A line of dots per number, in panels by its first word: ours with its error, the paper's, the target.

    What is shown beside is drawn too, unless it is of another kind.
    """
    panels = _by_first_word(lines)
    heights = [len(panel) + 0.6 for panel in panels.values()]
    drawing = Figure(figsize=(7.6, 0.32 * sum(heights) + 0.5 * len(heights) + 1.0))
    drawing.set_layout_engine("constrained")
    grid = drawing.subplots(len(panels), 1, squeeze=False, sharex=True, height_ratios=heights)
    for axes, (name, panel) in zip(grid[:, 0], panels.items(), strict=True):
        _panel(axes, name, panel, beside)
    grid[-1, 0].set_xlabel(value)
    legend_below(drawing, columns=4)
    return drawing


def dots_of(value: str) -> partial[Figure]:
    """`dots` for another value than accuracy, without what is shown beside."""
    return partial(dots, value=value, beside=False)


def _panel(axes: Axes, name: str, lines: Sequence[Line], beside: bool) -> None:
    axes.set_title(name)
    for height, line in enumerate(lines):
        _draw_line(axes, height, line, beside)
    axes.set_yticks(range(len(lines)), [", ".join(line.where[1:]) or line.name for line in lines])
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.grid(axis="x", color=FAINT, alpha=0.25, linewidth=0.6)
    axes.tick_params(axis="y", length=0)


def _draw_line(axes: Axes, height: int, line: Line, beside: bool) -> None:
    mean, error = mean_and_error(line.ours)
    if line.paper is not None:
        axes.plot([line.paper, mean], [height, height], color=FAINT, linewidth=1, zorder=1)
        axes.plot(line.paper, height, "D", mfc="white", mec=PAPER, ms=6, label="paper", zorder=3)
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
        color=SHORT if line.met is False else OURS,
        markersize=7,
        capsize=3,
        label="ours, below the target" if line.met is False else "ours",
        zorder=4,
    )


def curves(lines: Sequence[Line], across: str, value: str = "test accuracy") -> Figure:
    """A curve per first word over the second, a number on a logarithmic scale; the paper's as diamonds."""
    drawing = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = drawing.subplots()
    for colour, (name, group) in zip(COLOURS, _by_first_word(lines).items(), strict=False):
        amounts, values = [_amount(line) for line in group], [line.ours for line in group]
        curve(axes, amounts, values, color=colour, markersize=5, label=name)
        for line in group:
            if line.paper is not None:
                axes.plot(_amount(line), line.paper, "D", mfc="white", mec=colour, label="paper")
    logarithmic(axes, sorted({_amount(line) for line in lines}))
    axes.set_xlabel(across)
    axes.set_ylabel(value)
    axes.grid(color=FAINT, alpha=0.25, linewidth=0.6)
    legend_below(drawing, columns=4)
    return drawing


def curves_over(across: str, value: str = "test accuracy") -> partial[Figure]:
    """`curves` with its axes named."""
    return partial(curves, across=across, value=value)


def _amount(line: Line) -> float:
    return float(line.where[1].replace("\u202f", ""))


def _by_first_word(lines: Sequence[Line]) -> dict[str, list[Line]]:
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(line.where[0], []).append(line)
    return groups
