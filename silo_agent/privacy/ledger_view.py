"""The ledger on a terminal: sentences for an officer, the newest releases, what is spent and left."""

from __future__ import annotations

from datetime import datetime

from rich.markup import escape

from silo_agent.privacy.budget import shown, shown_left
from silo_agent.privacy.ledger_report import ESTIMATE, Line, Report, Total
from silo_agent.privacy.running_totals import Running
from wire.terminal import console, local_time, print_table

_EMPTY = "The ledger is empty: no ballot has left this hospital."


def print_report(report: Report, older: int) -> None:
    """Prints a report; `older` entries are not in its lines."""
    if not report.lines:
        console.print(_EMPTY)
        return
    for sentence in report.sentences():
        console.print(sentence, markup=False)
    hidden = f"{older} older ones: --last, --json or --csv. " if older else ""
    key = f"{hidden}ε after each release, at δ = {report.delta:g}; ≈ {ESTIMATE}; ≤ at most."
    print_table("Releases", [_release(line) for line in report.lines], empty="", caption=key)
    totals = (*report.datasets, *report.tasks)
    print_table("Spent", [_total(total) for total in totals], empty="")


def _release(line: Line) -> dict[str, object]:
    release = line.release
    worst = release.worst_case_epsilon
    what = [release.kind.value.replace("_", "-"), release.by, release.reason]
    notes = [
        release.mechanism or "",
        line.parameters,
        "" if worst is None else f"worst case ε = {shown(worst)}",
    ]
    return {
        "#": line.sequence,
        "when": local_time(datetime.fromisoformat(release.at)),
        "task": escape(release.task) or "–",
        "round": release.round or "–",
        "what": escape(", ".join(filter(None, what))),
        "made by": escape(", ".join(filter(None, notes))) or "–",
        "ballot": release.ballot_digest[:12] or "–",
        "ε task": _running(line.task),
        "ε data set": _running(line.dataset),
    }


def _running(total: Running | None) -> str:
    if total is None:
        return "–"
    marks = ("≈ " if total.estimate else "") + ("≤ " if total.at_most else "")
    return marks + shown(total.epsilon)


def _total(total: Total) -> dict[str, object]:
    return {
        "of": f"task {escape(total.task)}" if total.task_digest else f"data set {total.dataset}",
        "ballots": total.ballots,
        "ε spent": shown(total.spent),
        "budget": "–" if total.budget is None else f"{total.budget:g}",
        "left": "–" if total.left is None else shown_left(total.left),
        "unit": total.unit.value if total.unit else "–",
        "guarantee": total.guarantee,
    }
