"""The report's plots: SVG text from values, no global state."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator, PercentFormatter

from experiments.demo.outcome import PAPER_WEIGHTS, WEIGHT_BYTES, Outcome
from wire.runtime.terminal import size

ALONE, CONSILIUM, POOLED, INK, FAINT = "#b6bfcb", "#0b7a75", "#33415c", "#1d2733", "#8a94a3"

_STYLE: dict[Any, Any] = {
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    # The same values give the same file.
    "svg.hashsalt": "consilium",
}


def _styled(draw: Callable[[Outcome], Figure]) -> Callable[[Outcome], str]:
    """Draws in the report's style and returns SVG text."""

    @functools.wraps(draw)
    def drawn(outcome: Outcome) -> str:
        content = io.StringIO()
        with matplotlib.rc_context(_STYLE):
            draw(outcome).savefig(content, format="svg", metadata={"Date": None})
        return content.getvalue()

    return drawn


@_styled
def accuracy_plot(outcome: Outcome) -> Figure:
    """Three bars per hospital and for the mean: alone, Consilium, pooled."""
    names = [f"{one.hospital.title}\n{one.hospital.learner_title}" for one in outcome.hospitals]
    names.append("Mean\nof five")
    series = _accuracies(outcome)
    lowest = min(value for _, _, values in series for value in values)
    floor = max(0.0, np.floor(lowest * 20 - 1) / 20)
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(names), dtype=float)
    # The mean stands a little apart.
    places[-1] += 0.25
    for shift, (label, colour, values) in zip((-0.27, 0.0, 0.27), series, strict=True):
        bars = axes.bar(places + shift, values, 0.25, color=colour, label=label)
        axes.bar_label(bars, [f"{100 * value:.1f}" for value in values], fontsize=8, padding=2)
    axes.set_xticks(places, names)
    axes.tick_params(axis="x", length=0)
    axes.set_ylim(floor, 1.02)
    axes.yaxis.set_major_locator(MultipleLocator(0.05))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_ylabel(f"correct of {outcome.test_rows} test patients")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    if floor > 0:
        axes.text(
            0,
            -0.2,
            f"The axis starts at {floor:.0%}.",
            transform=axes.transAxes,
            color=FAINT,
            fontsize=9,
        )
    return figure


def _accuracies(outcome: Outcome) -> list[tuple[str, str, list[float]]]:
    """Name, colour and values, of every hospital and of the mean."""
    scores = [*(one.scores for one in outcome.hospitals), outcome.mean]
    return [
        ("alone", ALONE, [one.alone for one in scores]),
        ("Consilium", CONSILIUM, [one.consilium for one in scores]),
        ("all data pooled", POOLED, [one.pooled for one in scores]),
    ]


@_styled
def rounds_plot(outcome: Outcome) -> Figure:
    """Churn and accuracy of the consensus, round by round."""
    numbers = [one.round_number for one in outcome.rounds]
    figure = Figure(figsize=(9.6, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    # Against no labels at all everything is new; as a bar it would dwarf every later change.
    later = outcome.rounds[1:]
    bars = left.bar(
        [one.round_number for one in later], [one.churn for one in later], 0.5, color=POOLED
    )
    left.bar_label(bars, [f"{one.churn:.1%}" for one in later], fontsize=9, padding=2)
    left.text(1, 0, "first\nlabels", ha="center", va="bottom", color=FAINT, fontsize=9)
    left.set_title("Churn: labels that changed")
    left.set_ylim(0, 1.15 * max([0.02, *(one.churn for one in later)]))
    accuracy = [one.accuracy for one in outcome.rounds]
    right.plot(numbers, accuracy, "o-", color=CONSILIUM, clip_on=False)
    for round_number, value in zip(numbers, accuracy, strict=True):
        right.annotate(
            f"{value:.1%}",
            (round_number, value),
            (0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=9,
        )
    right.set_title("Consensus labels that are true")
    right.set_ylim(min(accuracy) - 0.03, min(1.0, max(accuracy) + 0.03))
    for axes in (left, right):
        axes.set_xlabel("round")
        axes.set_xlim(0.5, len(numbers) + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
    return figure


@_styled
def bytes_plot(outcome: Outcome) -> Figure:
    """Bytes that left each hospital, beside what other ways of learning together would have sent."""
    rounds = len(outcome.rounds)
    bars = [
        (f"{one.hospital.title}: ballots", one.bytes_up, CONSILIUM) for one in outcome.hospitals
    ]
    largest = max(one.file_bytes for one in outcome.hospitals)
    bars += [
        ("instead: the patients' rows", largest, ALONE),
        (
            f"instead: {outcome.network_weights:,} weights, {rounds} rounds",
            rounds * outcome.network_weights * WEIGHT_BYTES,
            ALONE,
        ),
        (
            f"instead: {PAPER_WEIGHTS:,} weights, {rounds} rounds",
            rounds * PAPER_WEIGHTS * WEIGHT_BYTES,
            ALONE,
        ),
    ]
    figure = Figure(figsize=(9.6, 3.8), layout="constrained")
    axes = figure.subplots()
    drawn = axes.barh(
        [name for name, _, _ in bars],
        [amount for _, amount, _ in bars],
        0.62,
        color=[colour for _, _, colour in bars],
    )
    axes.bar_label(drawn, [size(amount) for _, amount, _ in bars], fontsize=9, padding=4)
    axes.set_xscale("log")
    axes.set_xlim(10, 12 * max(amount for _, amount, _ in bars))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda amount, _: size(amount).replace(".0", "")))
    axes.set_xlabel("what leaves one hospital; each mark is ten times the one before")
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    return figure
