"""Tasks as a hospital's officer reads them: the definition in words, what would leave, where it stands.

A definition comes from outside: whatever could steer a terminal is shown, not obeyed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import Console

from silo_agent.shared.home import SiloHome
from silo_agent.trainer.approval.consent import SHOWN_DIGITS, ApprovalState, Decision, decide
from silo_agent.trainer.approval.policy import ApprovalCriteria, in_words
from silo_agent.trainer.approval.record import Act, ApprovalRecord
from silo_agent.trainer.models.failures import LAST_FAILURE
from silo_agent.trainer.task_folder import TaskFolder, seen_tasks
from wire.errors import ConfigurationError
from wire.privacy.declaration import PrivacyDemand
from wire.runtime.terminal import local_time, say, size
from wire.task.definition import TaskDefinition
from wire.task.words import task_words


@dataclass(frozen=True)
class SeenTask:
    """A task laid before this silo, and where it stands now."""

    definition: TaskDefinition
    criteria: ApprovalCriteria
    decision: Decision
    rounds_voted: tuple[int, ...]
    failure: str = ""
    """What failed last in its trainings; empty if nothing did."""

    @property
    def bytes_at_most(self) -> int:
        """Payload that can leave over the whole task."""
        return self.definition.shape.size_bytes * self.definition.rounds.max_rounds

    def status(self) -> str:
        """The state in words."""
        act = self.decision.approval
        if self.decision.state is ApprovalState.REFUSED:
            return f"{ApprovalState.REFUSED}: {'; '.join(self.decision.broken)}"
        if act is None:
            waits = self.decision.state is ApprovalState.WAITING
            return ApprovalState.WAITING if waits else Act.ACCEPTED_BY_POLICY
        when = local_time(datetime.fromisoformat(act.at))
        if act.act is Act.ACCEPTED_BY_POLICY:
            return f"{act.act}, {when}"
        said = f"{act.act} by {act.by}, {when}" + (f" ({act.note})" if act.note else "")
        if self.decision.state is ApprovalState.APPROVED:
            return said
        outdated = ", for other settings than silo.yaml has now"
        return f"{ApprovalState.WAITING}; {said}{outdated if act.act is Act.APPROVED else ''}"

    def row(self) -> dict[str, object]:
        """A line of the listing."""
        task = self.definition
        return {
            "task": task.name,
            "digest": task.digest[:SHOWN_DIGITS],
            "asks for": f"{task.method} on {task.public_set[:SHOWN_DIGITS]}, labels {_few(task.labels)}, "
            f"{task.rounds.max_rounds} rounds, quorum {task.rounds.quorum}",
            "voted": _ranges(self.rounds_voted) or "–",
            "status": "; ".join(filter(None, [self.status(), self.failure])),
        }

    def to_json(self) -> dict[str, Any]:
        """Everything there is to know, for scripts."""
        act = self.decision.approval
        return {
            "name": self.definition.name,
            "digest": self.definition.digest,
            "state": self.decision.state,
            "broken_limits": list(self.decision.broken),
            "act": act.act if act else None,
            "by": act.by if act else None,
            "at": act.at if act else None,
            "note": act.note if act else None,
            "rounds_voted": list(self.rounds_voted),
            "failure": self.failure or None,
            "bytes_at_most": self.bytes_at_most,
            "definition": self.definition.model_dump(mode="json"),
        }


def seen(home: SiloHome, criteria: ApprovalCriteria) -> list[SeenTask]:
    """Every task laid before this silo, oldest first, judged by `criteria` and the record as it is now."""
    approvals = ApprovalRecord(home.approvals).approvals()
    found = []
    for definition in seen_tasks(home.tasks):
        decision, folder = (
            decide(definition, criteria, approvals),
            TaskFolder(home.tasks, definition.digest),
        )
        failure = (folder.get(LAST_FAILURE) or b"").decode()
        found.append(SeenTask(definition, criteria, decision, folder.rounds_voted(), failure))
    return found


def find(tasks: list[SeenTask], reference: str) -> SeenTask:
    """The one task called `reference`, or whose digest begins with it; ConfigurationError otherwise."""
    found = [
        task
        for task in tasks
        if reference == task.definition.name
        or (len(reference) >= SHOWN_DIGITS and task.definition.digest.startswith(reference))
    ]
    if not found:
        raise ConfigurationError(
            f"No task {reference} has been laid before this silo.",
            "See `consilium agent tasks`; a task appears once the agent has heard of it.",
        )
    if len(found) > 1:
        digests = ", ".join(task.definition.digest for task in found)
        raise ConfigurationError(
            f"{len(found)} different tasks are called {reference}: {digests}.",
            "Read them with `consilium agent tasks --json` and name the digest you mean.",
        )
    return found[0]


def print_definition(task: SeenTask, console: Console) -> None:
    """What a person is asked to accept, all of it."""
    definition, rounds, shape = task.definition, task.definition.rounds, task.definition.shape
    stop = (
        f", sooner if at most {rounds.stop_churn:.1%} of the rows change in {rounds.stop_patience} rounds"
        if rounds.stop_patience
        else ""
    )
    lines = {
        "task": definition.name,
        "digest": definition.digest,
        "public set": f"{definition.public_set}, {definition.rows} rows",
        "labels": f"{len(definition.labels)}: {', '.join(definition.labels)}",
        **task_words(definition),
        "rounds": f"at most {rounds.max_rounds}, each open for {rounds.deadline:g} s and up to "
        f"{rounds.max_extensions} times longer{stop}",
        "quorum": f"a consensus is formed of {rounds.quorum} or more ballots",
        "silos": ", ".join(definition.silos) or "every active silo",
        "privacy": in_words(task.criteria.promise),
        "settings": f"{task.criteria.settings[:SHOWN_DIGITS]}, all of silo.yaml but its policy; with others this "
        "approval does not hold",
        "demands": _demanded(definition.privacy),
        "leaves": f"{shape.rows} rows × {shape.planes} bits × {rounds.max_rounds} rounds: at most "
        f"{rounds.max_rounds} ballots of {size(shape.size_bytes)}, {size(task.bytes_at_most)} in all",
        "status": task.status(),
    }
    for key, value in lines.items():
        say("[dim]{}[/]  {}", f"{key:>10}", value, to=console)


def print_lines(key: str, lines: Sequence[str], console: Console) -> None:
    """Several lines under one key, as `print_definition` prints one."""
    for number, line in enumerate(lines):
        say("[dim]{}[/]  {}", f"{'' if number else key:>10}", line, to=console)


def _demanded(demand: PrivacyDemand) -> str:
    """What the task asks of every silo's ballots, and what the coordinator adds."""
    words = []
    if demand.mechanisms:
        words.append(" or ".join(demand.mechanisms))
    if demand.max_epsilon is not None:
        estimates = ", estimates too" if demand.accept_estimates else ""
        words.append(f"ε ≤ {demand.max_epsilon:g} at δ ≤ {demand.max_delta:g}{estimates}")
    if demand.party_gamma is not None:
        words.append(
            f"the coordinator adds Laplace noise, γ = {demand.party_gamma:g}, to the count"
        )
    return "; ".join(words) or "nothing of a ballot's privacy"


def _few(labels: tuple[str, ...], most: int = 4) -> str:
    more = f" … {len(labels)} in all" if len(labels) > most else ""
    return ", ".join(labels[:most]) + more


def _ranges(numbers: tuple[int, ...]) -> str:
    """`1-3, 5` for 1, 2, 3, 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
