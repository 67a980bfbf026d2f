"""ε after each entry of a ledger, for its data set and its task, with bounded work however long the ledger is."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from silo_agent.trainer.privacy.budget import Account
from silo_agent.trainer.privacy.ledger.accounts import Accounts
from silo_agent.trainer.privacy.ledger.index import Entry
from silo_agent.trainer.privacy.ledger.release import Kind

_MOST: Final = 200
"""Different totals that are evaluated, about a tenth of a second each."""


@dataclass(frozen=True)
class RunningTotal:
    """What a data set or a task had spent after an entry."""

    epsilon: float
    at_most: bool
    """True if this is the total some entries later, an upper bound."""
    estimate: bool
    """True if an entry so far rests on an estimate."""


@dataclass(frozen=True)
class _State:
    account: Account
    estimate: bool

    @property
    def key(self) -> Hashable:
        return (frozenset(self.account.spending.items()), self.account.tasks)


_Scope: TypeAlias = tuple[str, str]
_Path: TypeAlias = list[tuple[int, _State]]


def running_totals(
    entries: Iterable[Entry], wanted: set[int], delta: float
) -> dict[int, dict[str, RunningTotal]]:
    """By the number of an entry: by its task's digest what the task had spent, by "" what the data set had."""
    found: dict[int, dict[str, RunningTotal]] = {number: {} for number in wanted}
    paths = _paths(entries, wanted)
    stride = _stride(paths)
    for (_, task), path in paths.items():
        for number, running in _evaluated(path, stride, delta):
            found[number][task] = running
    return found


def _paths(entries: Iterable[Entry], wanted: set[int]) -> dict[_Scope, _Path]:
    """How the spending of each data set and each task grew, where it was asked for."""
    accounts = Accounts()
    estimates: set[_Scope] = set()
    paths: dict[_Scope, _Path] = {}
    for entry in entries:
        number, release = entry.link.sequence, entry.release
        accounts.add(release)
        if release.kind is Kind.SAME_PATIENTS:
            estimates = {(accounts.owner(dataset), task) for dataset, task in estimates}
        for task in dict.fromkeys(("", release.task_digest)):
            scope = (accounts.owner(release.dataset), task)
            if release.costs and release.estimate:
                estimates.add(scope)
            if number in wanted:
                state = _State(accounts.account(*scope), scope in estimates)
                paths.setdefault(scope, []).append((number, state))
    return paths


def _stride(paths: Mapping[_Scope, _Path]) -> int:
    """Every how many-th total of a path is evaluated."""
    different = {state.key for path in paths.values() for _, state in path}
    return max(1, math.ceil(len(different) / _MOST))


def _evaluated(path: _Path, stride: int, delta: float) -> Iterable[tuple[int, RunningTotal]]:
    """From the end, which is always evaluated: what is not takes the next total, which is no smaller."""
    value, place, exact = 0.0, 0, True
    last: Hashable = None
    for number, state in reversed(path):
        if state.key != last:
            exact = place % stride == 0 or not state.account.spending
            value = state.account.total(delta).epsilon if exact else value
            place, last = place + 1, state.key
        yield number, RunningTotal(value, not exact, state.estimate)
