"""How an experiment's results are shown: Markdown tables and plots in one style."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from wire.runtime.files import write_atomically

INK, FAINT = "#1d2733", "#8a94a3"
COLOURS = ("#0b7a75", "#c8553d", "#7a5c99", "#c9a227", "#33415c", "#5b8c3e", "#b6bfcb")

_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """A table; the first columns, `words` of them, are text, the others are numbers."""
    rule = [*["---"] * words, *["---:"] * (len(header) - words)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *rows)) + "\n"


def write_plot(path: Path, draw: Callable[[], Figure]) -> None:
    """Draws in the experiments' style and writes a PNG; the same values give the same file."""
    content = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        draw().savefig(content, format="png", dpi=150, metadata={"Software": None})
    write_atomically(path, content.getvalue())


def write_page(out: Path, name: str, text: str, draw: Callable[[], Figure]) -> tuple[Path, Path]:
    """Writes OUT/NAME.md and OUT/NAME.png; their paths."""
    page, plot = out / f"{name}.md", out / f"{name}.png"
    write_atomically(page, text.encode())
    write_plot(plot, draw)
    return page, plot


def legend_below(figure: Figure, columns: int) -> None:
    """Every label once, below the panels: one of them may lack what another has."""
    handles = {
        label: handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)


def logarithmic(axes: Axes, ticks: Sequence[float]) -> None:
    """A logarithmic x axis with these ticks and no others, written as plain numbers."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def curve(
    axes: Axes, places: Sequence[float], values: Sequence[Sequence[float]], **style: Any
) -> None:
    """Means of the values at each place with their standard errors, joined by a line."""
    points = [mean_and_error(one) for one in values]
    axes.errorbar(
        places,
        [mean for mean, _ in points],
        [0.0 if math.isnan(error) else error for _, error in points],
        fmt="o-",
        capsize=3,
        **style,
    )


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error; no error from a single value (NaN)."""
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return float(np.mean(values)), float(error)
