"""What every database behind the coordinator must keep of how far silos agree, and of whom tasks name."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from store_scenes import (
    ADMIN,
    HOUR,
    LATER,
    NOW,
    consensus,
    definition,
    invite,
    join,
    open_task,
    publish_set,
    refused,
    running,
)

from coordinator.consensus import Agreement, PartyRelease
from coordinator.round_engine import ClosedBy
from coordinator.store import Store, closed_rounds
from coordinator.store.records import Consensus, TaskAgreement
from wire.errors import TASK_NAMES_STRANGERS
from wire.task.definition import TaskDefinition, TaskStatus

COMPARED = {"north": Agreement(7, 6), "south": Agreement(8, 2)}


def compared(agreement: dict[str, Agreement] | None = None) -> Consensus:
    return replace(consensus(), agreement=COMPARED if agreement is None else agreement)


def close(store: Store, name: str, published: Consensus, finished: str = "") -> None:
    current = running(store.tasks.get(name))
    store.tasks.begin_close(current, ClosedBy.EVERYONE)
    store.tasks.publish(current, published, LATER, finished)


class AgreementContract:
    """Runs against the empty database of a subclass's fixture `store`."""

    def test_agreement_is_kept_with_its_consensus(self, store: Store) -> None:
        open_task(store, "north", "south")
        close(store, "sepsis", compared())
        [closed] = store.tasks.history("sepsis")
        assert closed.agreement == COMPARED
        assert list(closed.agreement) == ["north", "south"]
        assert store.tasks.consensus("sepsis")[0] == closed == store.tasks.get("sepsis").latest

    def test_publishing_again_does_not_change_what_was_compared(self, store: Store) -> None:
        current = open_task(store, "north", "south")
        close(store, "sepsis", compared())
        store.tasks.publish(current, compared({"north": Agreement(8, 8)}), NOW + HOUR)
        assert store.tasks.consensus("sepsis")[0].agreement == COMPARED

    def test_behind_party_noise_none_is_kept_whatever_was_compared(self, store: Store) -> None:
        open_task(store, "north", "south")
        release = PartyRelease(sensitivity=2, gamma_micros=100_000, rows=8)
        close(store, "sepsis", replace(compared(), release=release))
        assert store.tasks.consensus("sepsis")[0].agreement == {}
        assert store.tasks.agreements(NOW) == []

    def test_the_latest_round_of_running_and_just_finished_tasks_is_compared(
        self, store: Store
    ) -> None:
        open_task(store, "north", "south")
        for name in ("ended", "draft", "held", "fresh"):
            store.tasks.create(definition(name), NOW, ADMIN)
        for name in ("ended", "held", "fresh"):
            store.tasks.start(name, NOW, ADMIN)
        assert store.tasks.agreements(NOW) == []
        close(store, "sepsis", compared())
        newest = {"north": Agreement(8, 8)}
        close(store, "sepsis", compared(newest))
        close(store, "ended", compared(), finished="All rounds were held.")
        close(store, "held", compared())
        store.tasks.pause("held", "Paused.", LATER, ADMIN)
        running_one = TaskAgreement("sepsis", newest)
        assert store.tasks.agreements(LATER) == [TaskAgreement("ended", COMPARED), running_one]
        # A task that runs is shown however long ago its round closed; one that ended is not.
        assert store.tasks.agreements(LATER + timedelta(microseconds=1)) == [running_one]

    def test_a_latest_round_that_compared_nobody_hides_those_before(self, store: Store) -> None:
        open_task(store, "north", "south")
        close(store, "sepsis", compared())
        close(store, "sepsis", compared({}))
        assert store.tasks.agreements(NOW) == []

    def test_only_so_many_tasks_are_compared_those_that_closed_last(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(closed_rounds, "_COMPARED_TASKS", 2)
        open_task(store, "north", "south")
        for hour, name in enumerate(("a", "c", "b")):
            store.tasks.create(definition(name), NOW, ADMIN)
            current = running(store.tasks.start(name, NOW, ADMIN))
            store.tasks.begin_close(current, ClosedBy.EVERYONE)
            store.tasks.publish(current, compared(), NOW + hour * HOUR)
        assert [found.task for found in store.tasks.agreements(NOW)] == ["b", "c"]

    # -- whom a task names ---------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "naming",
        [
            {"method": "cofed", "label_spaces": {"north": ["no"], "nort": ["yes"]}},
            {"consensus": {"rule": "weighted", "weights": {"north": 3, "nort": 2}}},
        ],
        ids=["label_spaces", "weights"],
    )
    def test_a_task_that_names_silos_nobody_registered_does_not_start(
        self, store: Store, naming: dict[str, object]
    ) -> None:
        join(store, "north", "south")
        publish_set(store)
        rounds = {"quorum": 2} if "method" in naming else {"quorum": 2, "max_rounds": 3}
        values = {"name": "sepsis", "public_set": "wards", "labels": ["no", "yes"], **naming}
        task = TaskDefinition.model_validate({**values, "rounds": rounds})
        store.tasks.create(task, NOW, ADMIN)

        def start() -> object:
            return store.tasks.start("sepsis", NOW, ADMIN)

        refused(TASK_NAMES_STRANGERS, start, "sepsis", ": nort.")
        assert store.tasks.get("sepsis").status is TaskStatus.DRAFT
        # It need not have joined yet.
        invite(store, "nort")
        start()
        assert running(store.tasks.get("sepsis")).expected == {"north", "south"}
