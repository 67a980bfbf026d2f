"""What was spent, by data set and by task, as entries are added; data sets of the same patients share their accounts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

from silo_agent.trainer.privacy.budget import Account, added_up
from silo_agent.trainer.privacy.ledger.release import Kind, Release
from wire.privacy.declaration import Unit

_NOTHING: Final = Account()


class Accounts:
    """Append-only: one call of `add` for every entry, in the order of the chain."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}
        self._accounts: dict[tuple[str, str], Account] = {}
        self._first: dict[tuple[str, str], int] = {}
        self._entries = 0

    def add(self, release: Release) -> None:
        """Takes in the next entry."""
        self._entries += 1
        if release.kind is Kind.SAME_PATIENTS:
            self._join(release.dataset, release.same_as)
        if not release.costs:
            return
        new, plan = added_up(release.events), added_up(release.plan) or None
        # What was written off belongs to the data set; no one knows to which task.
        for task in {"", release.task_digest}:
            key = (self.owner(release.dataset), task)
            after = self._accounts.get(key, _NOTHING).with_release(new, release.task_digest, plan)
            rowwise = after.rowwise + (release.unit is Unit.ROW)
            self._accounts[key] = replace(after, rowwise=rowwise)
            self._first.setdefault(key, self._entries)

    def owner(self, dataset: str) -> str:
        """The name under which a data set and all that have the same patients are added up: the first of them."""
        while dataset in self._owners:
            dataset = self._owners[dataset]
        return dataset

    def account(self, dataset: str, task_digest: str = "") -> Account:
        """What was spent of a data set, or by one task on it."""
        return self._accounts.get((self.owner(dataset), task_digest), _NOTHING)

    def _join(self, dataset: str, other: str) -> None:
        source, target = self.owner(dataset), self.owner(other)
        if source == target:
            return
        self._owners[source] = target
        for key in [key for key in self._accounts if key[0] == source]:
            moved, since = self._accounts.pop(key), self._first.pop(key)
            place = (target, key[1])
            there = self._accounts.get(place, _NOTHING)
            earlier = since < self._first.get(place, self._entries)
            self._first[place] = min(since, self._first.get(place, since))
            self._accounts[place] = Account(
                spending=Counter(there.spending + moved.spending),
                plan=moved.plan if earlier else there.plan,
                tasks=there.tasks | moved.tasks,
                rowwise=there.rowwise + moved.rowwise,
            )
