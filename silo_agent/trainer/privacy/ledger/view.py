"""The ledger on a terminal: sentences for an officer, the newest releases, what is spent and left."""

from __future__ import annotations

from datetime import datetime

from silo_agent.trainer.privacy.budget import shown, shown_left
from silo_agent.trainer.privacy.ledger.report import ESTIMATE, Report, ReportRow, SpendingTotal
from silo_agent.trainer.privacy.ledger.running_totals import RunningTotal
from wire.runtime.terminal import local_time, print_table, say

_EMPTY = "The ledger is empty: no ballot has left this hospital."


def print_report(report: Report, older: int) -> None:
    """Prints a report; `older` entries are not in its lines."""
    if not report.rows:
        say(_EMPTY)
        return
    for sentence in report.sentences():
        say("{}", sentence)
    hidden = f"{older} older ones: --last, --json or --csv. " if older else ""
    key = f"{hidden}ε after each release, at δ = {report.delta:g}; ≈ {ESTIMATE}; ≤ at most."
    print_table("Releases", [_release(row) for row in report.rows], empty="", caption=key)
    totals = (*report.datasets, *report.tasks)
    print_table("Spent", [_total(total) for total in totals], empty="")


def _release(row: ReportRow) -> dict[str, object]:
    release = row.release
    worst = release.worst_case_epsilon
    kind = release.kind.value.replace("_", "-")
    what = [f"{kind} as {release.same_as}" if release.same_as else kind, release.by, release.reason]
    notes = [
        release.mechanism or "",
        row.parameters,
        "" if worst is None else f"worst case ε = {shown(worst)}",
    ]
    return {
        "#": row.sequence,
        "when": local_time(datetime.fromisoformat(release.at)),
        "task": release.task or "–",
        "round": release.round or "–",
        "what": ", ".join(filter(None, what)),
        "made by": ", ".join(filter(None, notes)) or "–",
        "ballot": release.ballot_digest[:12] or "–",
        "ε task": _running(row.task),
        "ε data set": _running(row.dataset),
    }


def _running(total: RunningTotal | None) -> str:
    if total is None:
        return "–"
    marks = ("≈ " if total.estimate else "") + ("≤ " if total.at_most else "")
    return marks + shown(total.epsilon)


def _total(total: SpendingTotal) -> dict[str, object]:
    return {
        "of": f"task {total.task}" if total.task_digest else f"data set {total.dataset}",
        "ballots": total.ballots,
        "ε spent": shown(total.spent),
        "counted as": total.accounting.value if total.paid else "–",
        "budget": "–" if total.budget is None else f"{total.budget:g}",
        "left": "–" if total.left is None else shown_left(total.left),
        "unit": total.unit.value if total.unit else "–",
        "guarantee": total.guarantee,
    }
