"""A task as a person sees it: one row in a list, or a live panel."""

from __future__ import annotations

import math
from typing import Final

from pydantic import ValidationError
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table

from coordinator.cli.silo import silo_row
from wire.consilium.v1 import admin_pb2, task_pb2
from wire.privacy.declaration import Declaration, PrivacyDemand
from wire.runtime.terminal import cell, enum_word, local_time, styled
from wire.task.definition import TaskDefinition
from wire.task.words import task_words


def status_word(task: task_pb2.TaskState) -> str:
    """`running`, `paused` …"""
    return enum_word(task_pb2.TaskStatus, task.status)


def waiting(task: task_pb2.TaskState) -> str:
    """`waiting 3/5, closes 14:05:00`; the status otherwise."""
    if not task.HasField("open_round"):
        return status_word(task)
    current = task.open_round
    closes = local_time(current.closes_at).rpartition(" ")[2]
    extended = f" (extended {current.extensions}×)" if current.extensions else ""
    return f"waiting {len(current.voted)}/{len(current.expected)}, closes {closes}{extended}"


def churn(task: task_pb2.TaskState) -> str:
    """Share of rows whose label changed in the latest consensus."""
    if not task.HasField("consensus") or task.definition.rows == 0:
        return "–"
    return f"{task.consensus.changed_rows / task.definition.rows:.1%}"


def task_row(task: task_pb2.TaskState) -> dict[str, object]:
    """A task in a list."""
    return {
        "task": task.definition.name,
        "status": status_word(task),
        "round": f"{task.open_round.number or task.consensus.round}/{task.definition.rounds.max_rounds}",
        "now": waiting(task),
        "churn": churn(task),
        "reason": task.reason or "–",
        "sha256": task.digest,
    }


def closed_row(closed: admin_pb2.ClosedRound, rows: int) -> dict[str, object]:
    """A closed round in a task's history."""
    consensus = closed.consensus
    return {
        "round": consensus.round,
        "closed": local_time(closed.closed_at),
        "by": closed.closed_by,
        "ballots": consensus.ballots,
        "churn": f"{consensus.changed_rows / max(1, rows):.1%}",
        "abstained": f"{consensus.abstained_rows / max(1, rows):.1%}",
    }


_DECLARED: Final = ("silo", "round", "mechanism", "ε", "δ", "of each")


def declaration_row(declared: admin_pb2.SiloDeclaration) -> dict[str, object]:
    """What a silo says of the privacy of its latest ballot; ε is for the whole task."""
    try:
        said = Declaration.from_proto(declared.privacy)
    except ValidationError:
        unread = "unknown to this release"
        return {**dict.fromkeys(_DECLARED, "–"), "silo": declared.silo, "mechanism": unread}
    epsilon = "no bound" if math.isinf(said.epsilon) else f"{said.epsilon:g}"
    return {
        "silo": declared.silo,
        "round": declared.round,
        "mechanism": str(said.mechanism),
        "ε": f"{epsilon} (estimate)" if said.estimate else epsilon,
        "δ": f"{said.delta:g}",
        "of each": str(said.unit),
    }


def definition_words(definition: task_pb2.TaskDefinition) -> dict[str, str]:
    """What a task has silos do, how their votes count and what it asks of ballots, by keyword."""
    try:
        task = TaskDefinition.from_proto(definition)
        return {**task_words(task), "asks for": demand_words(definition)}
    except ValidationError:
        return {"asks for": "unknown: this release does not understand the task's definition"}


def demand_words(definition: task_pb2.TaskDefinition) -> str:
    """What a task asks of ballots, and the noise the coordinator adds."""
    if not definition.HasField("privacy"):
        return "–"
    demand = PrivacyDemand.from_proto(definition.privacy)
    words = [" or ".join(demand.mechanisms)] if demand.mechanisms else []
    if demand.max_epsilon is not None:
        estimates = "estimates accepted" if demand.accept_estimates else "no estimates"
        words.append(f"ε ≤ {demand.max_epsilon:g} at δ ≤ {demand.max_delta:g}, {estimates}")
    if demand.party_gamma is not None:
        words.append(
            f"the coordinator adds Laplace(1/γ) to every count, γ = {demand.party_gamma:g}"
        )
    return "; ".join(words) or "–"


def task_panel(update: admin_pb2.WatchTaskResponse) -> RenderableType:
    """The live view: the task above, who is connected below."""
    task = update.task
    voted = set(task.open_round.voted)
    silos = Table(expand=False, box=None, padding=(0, 2))
    for column in ("silo", "connected", "doing", "ballot"):
        silos.add_column(column)
    for silo in update.silos:
        row = silo_row(silo)
        ballot = "in" if silo.name in voted else "–"
        silos.add_row(*map(cell, (silo.name, row["connected"], row["doing"], ballot)))
    row = task_row(task)
    told = (row[key] for key in ("task", "status", "round", "now", "churn"))
    head = styled("[bold]{}[/]  {}  round {}  {}  churn {}", *told)
    reason = (cell(task.reason),) if task.reason else ()
    return Panel(Group(head, *reason, "", silos), expand=False)
