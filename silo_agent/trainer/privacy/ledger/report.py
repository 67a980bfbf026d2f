"""What the ledger means: every release with the ε it brought the total to, totals against budgets, in words."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from silo_agent.trainer.privacy.budget import Accounting, shown, shown_left
from silo_agent.trainer.privacy.ledger.accounts import Accounts
from silo_agent.trainer.privacy.ledger.index import Entry
from silo_agent.trainer.privacy.ledger.release import Release
from silo_agent.trainer.privacy.ledger.running_totals import RunningTotal, running_totals
from silo_agent.trainer.privacy.settings import PrivacySettings
from wire.privacy.declaration import Unit

ESTIMATE: Final = "estimate, not a guarantee"


@dataclass(frozen=True)
class ReportRow:
    """One release, with the totals after it."""

    sequence: int
    hash: str
    release: Release
    task: RunningTotal | None
    """What its task had spent after it; None for a write-off, which belongs to none."""
    dataset: RunningTotal
    """What its data set, and all of the same patients, had spent after it."""

    @property
    def parameters(self) -> str:
        """The parameters in short: `scale 40, rows 200`."""
        parts = (
            f"{name} {_short(value)}"
            for name, value in self.release.parameters.items()
            if name != "worst_case_epsilon"
        )
        return ", ".join(parts)

    def as_json(self) -> dict[str, object]:
        """Everything that is known of it; ∞ is `inf`, which JSON has no number for."""
        release = self.release
        worst = release.worst_case_epsilon
        return {
            "sequence": self.sequence,
            "at": release.at,
            "dataset": release.dataset,
            "task": release.task,
            "task_digest": release.task_digest,
            "round": release.round or None,
            "kind": release.kind.value,
            "reason": release.reason,
            "by": release.by,
            "ballots": release.ballots,
            "ballot_digest": release.ballot_digest,
            "mechanism": release.mechanism and release.mechanism.value,
            "parameters": release.parameters,
            "events": [event.model_dump(mode="json") for event in release.events],
            "made_from": list(release.made_from),
            "pays_for": list(release.pays_for),
            "plan": [event.model_dump(mode="json") for event in release.plan],
            "same_as": release.same_as,
            "patients_kept": release.patients_kept,
            "sensitivity": release.sensitivity and release.sensitivity.value,
            "estimate": ESTIMATE if release.estimate else "",
            "worst_case_epsilon": None if worst is None else _number(worst),
            "unit": release.unit.value,
            "units": release.units,
            "task_epsilon": None if self.task is None else _number(self.task.epsilon),
            "dataset_epsilon": _number(self.dataset.epsilon),
            "dataset_epsilon_estimate": self.dataset.estimate,
            "epsilon_upper_bound": self.dataset.at_most,
            "hash": self.hash,
        }

    def as_csv(self) -> dict[str, object]:
        """The same, one cell each."""
        cells = self.as_json()
        nested = {
            key: json.dumps(cells[key], ensure_ascii=False)
            for key in ("parameters", "events", "made_from", "pays_for", "plan")
        }
        return {**cells, **nested}


@dataclass(frozen=True)
class SpendingTotal:
    """What a data set, or one task on it, has spent."""

    dataset: str
    task: str
    """Empty for the data set itself."""
    task_digest: str
    ballots: int
    """Ballots that left, those written off included."""
    spent: float
    accounting: Accounting
    """Which number `spent` is, and so why it holds."""
    budget: float | None
    """As silo.yaml has it now; None if it sets none."""
    paid: int
    """Entries that cost something."""
    rowwise: int
    """Paid entries that protected rows only."""
    estimates: int
    """Paid entries that rest on an estimate."""
    unprotected: int
    """Entries without noise."""

    @property
    def unit(self) -> Unit | None:
        """For whom `spent` holds: a row as soon as one release protected rows only; None if nothing cost."""
        if not self.paid:
            return None
        return Unit.ROW if self.rowwise else Unit.PATIENT

    @property
    def left(self) -> float | None:
        """Budget less what is spent, never below 0. Losses do not simply add up, so more may fit."""
        return None if self.budget is None else max(0.0, self.budget - self.spent)

    @property
    def guarantee(self) -> str:
        """What may be said of `spent`, in a few words."""
        if self.unprotected:
            return "none: released without noise"
        return ESTIMATE if self.estimates else "proved"

    def as_json(self) -> dict[str, object]:
        """Every number; ∞ is `inf`."""
        return {
            "dataset": self.dataset,
            "task": self.task or None,
            "task_digest": self.task_digest or None,
            "ballots": self.ballots,
            "epsilon_spent": _number(self.spent),
            "accounting": self.accounting.value,
            "epsilon_budget": self.budget,
            "epsilon_left": self.left,
            "unit": self.unit and self.unit.value,
            "paid": self.paid,
            "protecting_rows_only": self.rowwise,
            "estimates": self.estimates,
            "unprotected": self.unprotected,
            "guarantee": self.guarantee,
        }


@dataclass(frozen=True)
class Report:
    """The ledger at one δ."""

    delta: float
    rows: tuple[ReportRow, ...]
    """The newest that were asked for, oldest first."""
    datasets: tuple[SpendingTotal, ...]
    tasks: tuple[SpendingTotal, ...]

    def sentences(self) -> list[str]:
        """What an officer needs to know, a few sentences for each data set."""
        return [_sentence(total, self.delta) for total in self.datasets]

    def as_json(self) -> dict[str, object]:
        """Everything, for scripts."""
        return {
            "summary": self.sentences(),
            "delta": self.delta,
            "datasets": [total.as_json() for total in self.datasets],
            "tasks": [total.as_json() for total in self.tasks],
            "entries": [row.as_json() for row in self.rows],
        }


def examine(entries: Sequence[Entry], settings: PrivacySettings, last: int | None = None) -> Report:
    """The report on all entries, with lines for the `last` of them; budgets and δ are those of silo.yaml."""
    wanted = entries if last is None else entries[-last:]
    points = running_totals(entries, {entry.link.sequence for entry in wanted}, settings.delta)
    rows = tuple(_row(entry, points[entry.link.sequence]) for entry in wanted)
    accounts = Accounts()
    for entry in entries:
        accounts.add(entry.release)
    by_dataset: dict[tuple[str, str], list[Release]] = {}
    by_task: dict[tuple[str, str], list[Release]] = {}
    for entry in entries:
        release = entry.release
        owner = accounts.owner(release.dataset)
        by_dataset.setdefault((owner, ""), []).append(release)
        if release.task_digest:
            by_task.setdefault((owner, release.task_digest), []).append(release)
    return Report(
        settings.delta,
        rows,
        tuple(_total(accounts, key, group, settings) for key, group in by_dataset.items()),
        tuple(_total(accounts, key, group, settings) for key, group in by_task.items()),
    )


def _row(entry: Entry, totals: Mapping[str, RunningTotal]) -> ReportRow:
    release = entry.release
    task = totals[release.task_digest] if release.task_digest else None
    return ReportRow(entry.link.sequence, entry.link.hash, release, task, totals[""])


def _total(
    accounts: Accounts,
    scope: tuple[str, str],
    releases: Sequence[Release],
    settings: PrivacySettings,
) -> SpendingTotal:
    owner, digest = scope
    paid = [release for release in releases if release.costs]
    total = accounts.account(owner, digest).total(settings.delta)
    names = dict.fromkeys((owner, *(release.dataset for release in releases)))
    return SpendingTotal(
        dataset=" + ".join(names),
        task=releases[-1].task if digest else "",
        task_digest=digest,
        ballots=sum(release.ballots for release in releases),
        spent=total.epsilon,
        accounting=total.accounting,
        budget=_budget(accounts, owner, digest, settings),
        paid=len(paid),
        rowwise=sum(release.unit is Unit.ROW for release in paid),
        estimates=sum(release.estimate for release in paid),
        unprotected=sum(release.unprotected for release in paid),
    )


def _budget(
    accounts: Accounts, owner: str, task_digest: str, settings: PrivacySettings
) -> float | None:
    """silo.yaml's budget for a task, or with "" for the data set; None if it is for another data set."""
    if owner != accounts.owner(settings.dataset):
        return None
    return settings.epsilon if task_digest else settings.lifetime_epsilon


def _sentence(total: SpendingTotal, delta: float) -> str:
    words = f"{_counted(total.ballots, 'ballot')} left this hospital, made from data set {total.dataset}"
    if total.unit is None:
        return f"{words}; nothing in them depends on any patient."
    if total.unprotected:
        had = f"{_counted(total.unprotected, 'entry', 'entries')} had no noise"
        return f"{words}. {had}, so nothing bounds what may be learned of a {total.unit} (ε = ∞)."
    words += (
        f". Whoever sees all of it learns of any one {total.unit} at most what ε = "
        f"{shown(total.spent)} at δ = {delta:g} allows"
    )
    if total.budget is not None and total.left is not None:
        words += f"; of the lifetime budget ε = {total.budget:g}, {shown_left(total.left)} is left"
    words += f". This ε is the {total.accounting} number: {total.accounting.why}."
    if total.estimates:
        entries = _counted(total.estimates, "entry", "entries")
        words += f" {entries} of {total.paid} rest on an assumption, so this ε is an {ESTIMATE}."
    if total.rowwise:
        words += (
            f" {total.rowwise} of {total.paid} paid entries protect single rows only: a patient with "
            "several rows is protected less."
        )
    return words


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _number(epsilon: float) -> float | str:
    return "inf" if math.isinf(epsilon) else epsilon


def _short(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 24 else f"{text[:23]}…"
