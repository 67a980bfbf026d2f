"""The demo's result on a terminal: a table, what left each building, and where the report is."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from experiments.demo.outcome import PAPER_WEIGHTS, WEIGHT_BYTES, Outcome
from experiments.demo.report import Report
from experiments.demo.scores import Scores
from wire.runtime.terminal import size


def print_summary(outcome: Outcome, report: Report, console: Console) -> None:
    """Prints everything a person wants to know at the end."""
    console.print()
    console.print(result_table(outcome))
    console.print(what_left(outcome))
    console.print(instead(outcome))
    console.print(f"Finished in {outcome.seconds:.0f} s. {outcome.reason}")
    console.print(f"Report: [bold]{report.page}[/]; its plots: {', '.join(report.plots)}.")
    console.print(f"Again: [bold]{outcome.command}[/]")


def result_table(outcome: Outcome) -> Table:
    """A row per hospital and one for the mean."""
    table = Table(
        title=f"Accuracy on {outcome.test_rows} test patients: alone, with Consilium, all data pooled",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        collapse_padding=True,
    )
    table.add_column("hospital", no_wrap=True)
    table.add_column("learner", no_wrap=True)
    for name in ("alone", "Consilium", "pooled", "gain", "up", "down"):
        bold = "bold" if name == "Consilium" else None
        table.add_column(name, justify="right", no_wrap=True, style=bold)
    for one in outcome.hospitals:
        table.add_row(
            one.hospital.title,
            one.hospital.learner_title,
            *_cells(one.scores),
            size(one.bytes_up),
            size(one.bytes_down),
            end_section=one is outcome.hospitals[-1],
        )
    table.add_row("mean", "", *_cells(outcome.mean), "", "")
    return table


def _cells(scores: Scores) -> tuple[str, ...]:
    colour = "green" if scores.gain > 0 else "red" if scores.gain < 0 else "default"
    return (
        f"{scores.alone:.3f}",
        f"{scores.consilium:.3f}",
        f"{scores.pooled:.3f}",
        f"[{colour}]{scores.gain:+.3f}[/]",
    )


def what_left(outcome: Outcome) -> str:
    """What left each building, and what that cost."""
    ballots = sorted({one.bytes_up for one in outcome.hospitals})
    sent = " to ".join(size(bytes_) for bytes_ in {ballots[0]: 0, ballots[-1]: 0})
    rounds = len(outcome.rounds)
    return (
        f"Each hospital sent {sent}: {rounds} ballots of {size(outcome.ballot_bytes)}, "
        f"one hard label for each of {outcome.public_rows} public rows. No patient row, no weight, no probability. "
        "It added no noise, so every hospital's ledger says ε = ∞; `consilium privacy plan` says what a budget would buy."
    )


def instead(outcome: Outcome) -> str:
    """One sentence on what sharing weights would have cost."""
    network = size(outcome.network_weights * WEIGHT_BYTES)
    paper = size(PAPER_WEIGHTS * WEIGHT_BYTES)
    return (
        f"FedAvg would have sent {network} a round for Uppsala's network of {outcome.network_weights:,} weights, "
        f"{paper} for an MLP of {PAPER_WEIGHTS:,}; trees and rules have no weights to average."
    )
