"""What every database behind the coordinator must do with public sets, tasks, ballots and rounds.

A backend's test module gives one fixture, `url`: an empty database that lives as long as the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine
from store_scenes import (
    ADMIN,
    HOUR,
    LATER,
    NOW,
    SCHEMA,
    SET_DIGEST,
    accept,
    acts,
    ballot,
    consensus,
    definition,
    invite,
    join,
    open_task,
    publish_set,
    refused,
    running,
    stored,
    vote,
)

from coordinator.round_engine import ClosedBy
from coordinator.store import Store
from coordinator.store.schema import metadata
from wire.ballot import digest
from wire.errors import (
    BALLOT_CONFLICT,
    CONSENSUS_UNKNOWN,
    MESSAGE_MALFORMED,
    NOT_A_PARTICIPANT,
    PUBLIC_SET_UNKNOWN,
    ROUND_CLOSED,
    ROUND_NOT_OPEN,
    TASK_EXISTS,
    TASK_NOT_RUNNING,
    TASK_UNKNOWN,
    TOO_FEW_SILOS,
    Refusal,
)
from wire.identity.identity import Role
from wire.task.definition import TaskStatus


class StoreContract:
    """Runs against an empty database whose SQLAlchemy URL a subclass's fixture `url` names."""

    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        opened = Store(url)
        yield opened
        opened.close()

    # -- the database itself -------------------------------------------------------------------------

    def test_migrations_make_every_table_from_nothing(self, store: Store, url: str) -> None:
        engine = create_engine(url)
        with engine.connect() as connection:
            difference = compare_metadata(MigrationContext.configure(connection), metadata)
        engine.dispose()
        assert difference == []

    def test_opening_again_finds_what_was_stored(self, store: Store, url: str) -> None:
        open_task(store, "north", "south")
        vote(store, "north")
        before = store.tasks.get("sepsis"), store.silos.all(), store.public_sets.all()
        store.close()
        again = Store(url)
        assert (again.tasks.get("sepsis"), again.silos.all(), again.public_sets.all()) == before
        again.close()

    def test_two_openings_of_one_database_see_each_others_changes(
        self, store: Store, url: str
    ) -> None:
        other = Store(url)
        open_task(store, "north", "south")
        assert not vote(other, "north")
        assert vote(store, "north")
        assert running(store.tasks.get("sepsis")).voted == {"north"}
        other.close()

    def test_names_are_in_the_same_order_whatever_the_engine(self, store: Store) -> None:
        names = ["ab", "a-c", "a1", "b", "a"]
        open_task(store, *names)
        for name in names:
            vote(store, name)
        assert [silo.name for silo in store.silos.all()] == sorted(names)
        assert list(stored(store)) == sorted(names)

    # -- public sets ---------------------------------------------------------------------------------

    def test_a_new_content_is_a_new_version_and_the_same_content_the_same(
        self, store: Store
    ) -> None:
        first, held = store.public_sets.add("wards", SET_DIGEST, 8, 100, SCHEMA, NOW, ADMIN)
        assert (first.version, held) == (1, False)
        assert store.public_sets.add("wards", SET_DIGEST, 8, 100, SCHEMA, LATER, ADMIN) == (
            first,
            True,
        )
        second, _ = store.public_sets.add("wards", "b" * 64, 9, 120, SCHEMA, LATER, ADMIN)
        assert second.version == 2
        assert [found.version for found in store.public_sets.all()] == [2, 1]
        other, _ = store.public_sets.add("clinics", SET_DIGEST, 8, 100, SCHEMA, LATER, ADMIN)
        assert (other.name, other.version) == ("clinics", 1)

    def test_a_set_is_found_by_digest_by_name_and_by_version(self, store: Store) -> None:
        first, _ = store.public_sets.add("wards", SET_DIGEST, 8, 100, SCHEMA, NOW, ADMIN)
        second, _ = store.public_sets.add("wards", "b" * 64, 9, 120, SCHEMA, LATER, ADMIN)
        assert store.public_sets.find("wards") == second
        assert store.public_sets.find("wards@1") == first
        assert store.public_sets.find(SET_DIGEST) == first
        assert first.schema == SCHEMA

    @pytest.mark.parametrize(
        "unknown",
        ["ward", "wards@3", "c" * 64, f"wards@{2**31}", f"wards@{2**63}", "wards@" + "9" * 5000],
    )
    def test_an_unknown_set_is_named(self, store: Store, unknown: str) -> None:
        publish_set(store)
        refused(PUBLIC_SET_UNKNOWN, lambda: store.public_sets.find(unknown), unknown)

    def test_a_number_no_database_holds_is_the_callers_mistake(self, store: Store) -> None:
        refused(MESSAGE_MALFORMED, lambda: store.ballots.held("sepsis", 2**70, "north"))

    # -- tasks ---------------------------------------------------------------------------------------

    def test_a_task_is_created_once_with_its_public_set_resolved(self, store: Store) -> None:
        publish_set(store)
        made = store.tasks.create(definition(), NOW, ADMIN)
        assert made.status is TaskStatus.DRAFT
        assert (made.definition.public_set, made.definition.rows) == (SET_DIGEST, 8)
        assert made.digest == made.definition.digest
        assert store.tasks.create(definition(), LATER, ADMIN) == made
        refused(TASK_EXISTS, lambda: store.tasks.create(definition(quorum=1), NOW, ADMIN), "sepsis")
        assert [task.name for task in store.tasks.all()] == ["sepsis"]

    def test_only_running_tasks_are_looked_at_with_every_ballot(self, store: Store) -> None:
        join(store, "north", "south")
        publish_set(store)
        for name in ("draft", "ended", "paused", "late", "early"):
            store.tasks.create(definition(name), NOW, ADMIN)
        for name in ("ended", "paused", "late", "early"):
            store.tasks.start(name, NOW, ADMIN)
        store.tasks.pause("paused", "lunch", NOW, ADMIN)
        current = running(store.tasks.get("ended"))
        store.tasks.begin_close(current, ClosedBy.EVERYONE)
        store.tasks.publish(current, consensus(), LATER, "All rounds were held.")
        vote_in = store.tasks.running()
        assert [task.name for task in vote_in] == ["early", "late"]
        assert vote_in == [store.tasks.get("early"), store.tasks.get("late")]

    def test_a_task_needs_a_public_set_and_a_name_that_exists(self, store: Store) -> None:
        refused(PUBLIC_SET_UNKNOWN, lambda: store.tasks.create(definition(), NOW, ADMIN), "wards")
        asks: list[Callable[[str], object]] = [store.tasks.get, store.tasks.consensus]
        for ask in asks:
            with pytest.raises(Refusal) as caught:
                ask("sepsis")
            assert caught.value.is_a(TASK_UNKNOWN, CONSENSUS_UNKNOWN)

    def test_too_few_silos_cannot_start_and_revoked_ones_do_not_count(self, store: Store) -> None:
        join(store, "north", "south")
        invite(store, "west")
        store.members.revoke(Role.SILO, "south", NOW, ADMIN)
        publish_set(store)
        store.tasks.create(definition(), NOW, ADMIN)
        refused(TOO_FEW_SILOS, lambda: store.tasks.start("sepsis", NOW, ADMIN), "needs 2", "1 can")
        assert store.tasks.get("sepsis").status is TaskStatus.DRAFT

    def test_starting_opens_the_first_round_and_starting_again_changes_nothing(
        self, store: Store
    ) -> None:
        first = open_task(store, "north", "south")
        assert first.number == 1
        assert first.expected == {"north", "south"}
        assert (first.opened_at, first.closes_at) == (NOW, NOW + timedelta(seconds=60))
        assert running(store.tasks.start("sepsis", LATER, ADMIN)) == first

    def test_a_task_for_named_silos_expects_only_them(self, store: Store) -> None:
        join(store, "north", "south", "west")
        publish_set(store)
        chosen = definition().model_copy(update={"silos": ("west", "north")})
        store.tasks.create(chosen, NOW, ADMIN)
        assert running(store.tasks.start("sepsis", NOW, ADMIN)).expected == {"north", "west"}

    def test_a_paused_task_goes_on_in_the_same_round_with_its_ballots(self, store: Store) -> None:
        current = open_task(store, "north", "south")
        vote(store, "north")
        store.tasks.extend(current, LATER, NOW)
        assert store.tasks.pause("sepsis", "Too few.", LATER, ADMIN).reason == "Too few."
        refused(
            TASK_NOT_RUNNING, lambda: store.tasks.pause("sepsis", "Again.", LATER, ADMIN), "paused"
        )
        join(store, "west")
        resumed = store.tasks.start("sepsis", NOW + HOUR, ADMIN)
        assert (resumed.status, resumed.reason) == (TaskStatus.RUNNING, "")
        goes_on = running(resumed)
        assert (goes_on.number, goes_on.extensions) == (1, 0)
        assert goes_on.voted == {"north"}
        assert goes_on.closes_at == NOW + HOUR + timedelta(seconds=60)
        assert goes_on.expected == {"north", "south", "west"}

    def test_an_extension_moves_the_deadline_and_is_counted(self, store: Store) -> None:
        current = open_task(store, "north", "south")
        assert store.tasks.extend(current, NOW + HOUR, NOW)
        extended = running(store.tasks.get("sepsis"))
        assert (extended.closes_at, extended.extensions) == (NOW + HOUR, 1)

    def test_a_deadline_acts_only_on_the_round_it_was_seen_on(self, store: Store) -> None:
        current = open_task(store, "north", "south")
        store.tasks.extend(current, NOW + HOUR, NOW)
        before = store.tasks.get("sepsis"), acts(store)
        # A second replica that looked before the first one acted.
        assert not store.tasks.extend(current, NOW + 2 * HOUR, NOW)
        assert not store.tasks.stall(current, "Too few.", NOW)
        assert (store.tasks.get("sepsis"), acts(store)) == before

    def test_a_round_that_reached_its_quorum_is_neither_extended_nor_stalled(
        self, store: Store
    ) -> None:
        current = open_task(store, "north", "south")
        vote(store, "north")
        vote(store, "south")
        assert not store.tasks.extend(current, NOW + HOUR, NOW)
        assert not store.tasks.stall(current, "Too few.", NOW)

    def test_a_stalled_task_is_paused_with_its_reason(self, store: Store) -> None:
        current = open_task(store, "north", "south")
        assert store.tasks.stall(current, "Too few.", NOW)
        stalled = store.tasks.get("sepsis")
        assert (stalled.status, stalled.reason) == (TaskStatus.PAUSED, "Too few.")
        assert stalled.stalled
        assert acts(store)[-1] == "task_paused task/sepsis by coordinator"
        resumed = store.tasks.start("sepsis", LATER, ADMIN)
        assert (resumed.stalled, running(resumed).extensions) == (False, 0)

    def test_a_task_that_an_admin_paused_is_not_stalled(self, store: Store) -> None:
        current = open_task(store, "north", "south")
        for _ in range(definition().rounds.max_extensions):
            assert store.tasks.extend(current, current.closes_at + HOUR, NOW)
            current = running(store.tasks.get("sepsis"))
        assert not store.tasks.pause("sepsis", "Paused.", LATER, ADMIN).stalled

    def test_an_admin_who_pauses_a_stalled_task_takes_it_over_once(self, store: Store) -> None:
        current = open_task(store, "north", "south")
        store.tasks.stall(current, "Too few.", NOW)
        held = store.tasks.pause("sepsis", "Paused by chief.", LATER, ADMIN)
        assert (held.status, held.reason) == (TaskStatus.PAUSED, "Paused by chief.")
        assert not held.stalled
        assert acts(store)[-1] == f"task_paused task/sepsis by {ADMIN}"
        refused(
            TASK_NOT_RUNNING, lambda: store.tasks.pause("sepsis", "Again.", LATER, ADMIN), "paused"
        )

    # -- ballots -------------------------------------------------------------------------------------

    def test_a_ballot_is_stored_and_handed_back_bit_by_bit(self, store: Store) -> None:
        open_task(store, "north", "south")
        vote(store, "south", b"\x00\xff")
        vote(store, "north", b"\x01\x80")
        assert list(stored(store).items()) == [
            ("north", b"\x01\x80"),
            ("south", b"\x00\xff"),
        ]
        assert running(store.tasks.get("sepsis")).voted == {"north", "south"}

    def test_the_quorums_moment_is_that_of_the_ballot_which_completed_it(
        self, store: Store
    ) -> None:
        open_task(store, "east", "north", "south")
        for minute, silo in enumerate(("north", "south", "east"), start=1):
            assert (running(store.tasks.get("sepsis")).quorum_at is None) == (minute <= 2)
            moment = NOW + timedelta(minutes=minute)
            accept(store, ballot(silo, b"\x01", at=moment), b"\x01")
        assert running(store.tasks.get("sepsis")).quorum_at == NOW + timedelta(minutes=2)

    def test_the_same_ballot_again_is_the_same_record(self, store: Store) -> None:
        open_task(store, "north", "south")
        payload = b"\x01\x02"
        first = accept(store, ballot("north", payload), payload)
        repeated = replace(ballot("north", payload, at=NOW + HOUR), signature=b"another")
        again = accept(store, repeated, payload)
        # The receipt that was given then, signature and all.
        assert again == replace(first, already_held=True)
        assert store.ballots.held("sepsis", 1, "north") == again
        assert list(stored(store)) == ["north"]

    def test_a_different_second_ballot_is_a_conflict_and_the_first_stands(
        self, store: Store
    ) -> None:
        current = open_task(store, "north", "south")
        vote(store, "north", b"\x01\x02")
        refused(BALLOT_CONFLICT, lambda: vote(store, "north", b"\x03\x04"), "north", "round 1")
        vote(store, "south")
        store.tasks.begin_close(current, ClosedBy.EVERYONE)
        refused(BALLOT_CONFLICT, lambda: vote(store, "north", b"\x03\x04"))
        assert stored(store)["north"] == b"\x01\x02"

    def test_an_early_ballot_is_refused_and_told_which_round_is_open(self, store: Store) -> None:
        open_task(store, "north", "south")
        refused(ROUND_NOT_OPEN, lambda: vote(store, "north", number=2), "round 1 is open")

    def test_a_late_ballot_is_refused_but_a_repeated_one_keeps_its_receipt(
        self, store: Store
    ) -> None:
        current = open_task(store, "north", "south", "west")
        vote(store, "north")
        vote(store, "south")
        store.tasks.begin_close(current, ClosedBy.DEADLINE)
        refused(ROUND_CLOSED, lambda: vote(store, "west"), "Round 1", "sepsis")
        store.tasks.publish(current, consensus(), LATER)
        refused(ROUND_CLOSED, lambda: vote(store, "west"))
        assert vote(store, "north")

    def test_a_silo_that_joined_after_the_opening_votes_from_the_next_round_on(
        self, store: Store
    ) -> None:
        current = open_task(store, "north", "south")
        join(store, "west")
        refused(NOT_A_PARTICIPANT, lambda: vote(store, "west"), "west")
        store.tasks.begin_close(current, ClosedBy.DEADLINE)
        opened = running(store.tasks.publish(current, consensus(), LATER))
        assert opened.number == 2
        assert opened.expected == {"north", "south", "west"}
        assert not vote(store, "west", number=2)

    def test_a_paused_task_takes_no_new_ballot(self, store: Store) -> None:
        open_task(store, "north", "south")
        vote(store, "north")
        store.tasks.pause("sepsis", "Paused by admin.", LATER, ADMIN)
        refused(TASK_NOT_RUNNING, lambda: vote(store, "south"), "paused")
        assert vote(store, "north")

    def test_a_ballot_for_an_unknown_or_unstarted_task_is_refused(self, store: Store) -> None:
        join(store, "north", "south")
        refused(TASK_UNKNOWN, lambda: vote(store, "north"), "sepsis")
        publish_set(store)
        store.tasks.create(definition(), NOW, ADMIN)
        refused(ROUND_CLOSED, lambda: vote(store, "north"))

    # -- closing -------------------------------------------------------------------------------------

    def test_closing_begins_once_and_keeps_its_first_reason(self, store: Store) -> None:
        current = open_task(store, "north", "south")
        assert store.tasks.begin_close(current, ClosedBy.GRACE)
        assert store.tasks.begin_close(current, ClosedBy.DEADLINE)
        assert running(store.tasks.get("sepsis")).closing is ClosedBy.GRACE
        store.tasks.publish(current, consensus(), LATER)
        assert not store.tasks.begin_close(current, ClosedBy.DEADLINE)

    def test_a_held_task_does_not_close(self, store: Store) -> None:
        current = open_task(store, "north", "south")
        store.tasks.pause("sepsis", "Paused.", LATER, ADMIN)
        assert not store.tasks.begin_close(current, ClosedBy.DEADLINE)
        assert running(store.tasks.get("sepsis")).closing is None

    def test_a_round_that_takes_ballots_is_not_published(self, store: Store) -> None:
        current = open_task(store, "north", "south")
        assert running(store.tasks.publish(current, consensus(), LATER)) == current
        assert store.tasks.history("sepsis") == []

    def test_publishing_again_changes_nothing(self, store: Store) -> None:
        current = open_task(store, "north", "south")
        vote(store, "north")
        vote(store, "south")
        store.tasks.begin_close(current, ClosedBy.EVERYONE)
        after = store.tasks.publish(current, consensus(), LATER)
        again = store.tasks.publish(current, consensus(b"\x00\x0f"), NOW + HOUR)
        assert again == after
        assert running(again).number == 2
        closed, payload = store.tasks.consensus("sepsis")
        assert (closed.number, payload, closed.digest) == (1, b"\x0f\x00", digest(b"\x0f\x00"))
        assert (closed.closed_at, closed.closed_by) == (LATER, ClosedBy.EVERYONE)
        assert (closed.changed_rows, closed.abstained_rows, closed.ballots) == (8, 1, 2)
        assert closed.voted == ("north", "south")
        assert after.latest == closed

    def test_the_last_round_ends_the_task_with_a_reason(self, store: Store) -> None:
        current = open_task(store, "north", "south")
        store.tasks.begin_close(current, ClosedBy.EVERYONE)
        ended = store.tasks.publish(current, consensus(), LATER, finished="All rounds were held.")
        assert (ended.status, ended.open_round) == (TaskStatus.FINISHED, None)
        assert ended.reason == "All rounds were held."
        refused(TASK_NOT_RUNNING, lambda: store.tasks.start("sepsis", LATER, ADMIN), "finished")
        refused(ROUND_CLOSED, lambda: vote(store, "north"))

    def test_every_rounds_consensus_is_kept_and_the_history_is_in_order(self, store: Store) -> None:
        current = open_task(store, "north", "south")
        for number in (1, 2):
            store.tasks.begin_close(current, ClosedBy.DEADLINE)
            labels = consensus(bytes([number, 0]))
            current = running(store.tasks.publish(current, labels, LATER))
        assert [closed.number for closed in store.tasks.history("sepsis")] == [1, 2]
        assert store.tasks.consensus("sepsis", 1)[1] == b"\x01\x00"
        assert store.tasks.consensus("sepsis")[1] == b"\x02\x00"
        refused(CONSENSUS_UNKNOWN, lambda: store.tasks.consensus("sepsis", 3), "round 3")

    # -- what silos hear -----------------------------------------------------------------------------

    def test_drafts_are_not_announced_and_every_change_has_a_higher_revision(
        self, store: Store
    ) -> None:
        publish_set(store)
        join(store, "north", "south")
        for name in ("sepsis", "stroke"):
            store.tasks.create(definition(name), NOW, ADMIN)
        assert store.tasks.changed_since(0) == []
        for name in ("stroke", "sepsis"):
            store.tasks.start(name, NOW, ADMIN)
        heard = store.tasks.changed_since(0)
        assert [task.name for task in heard] == ["stroke", "sepsis"]
        current = running(heard[1])
        for change in (
            lambda: store.tasks.extend(current, LATER, NOW),
            lambda: store.tasks.pause("sepsis", "Paused.", LATER, ADMIN),
            lambda: store.tasks.start("sepsis", LATER, ADMIN),
            lambda: (
                store.tasks.begin_close(current, ClosedBy.EVERYONE),
                store.tasks.publish(current, consensus(), LATER),
            ),
        ):
            seen = max(task.revision for task in heard)
            change()
            heard = store.tasks.changed_since(seen)
            assert [task.name for task in heard] == ["sepsis"]
            assert heard[0].revision > seen
        assert store.tasks.changed_since(heard[0].revision) == []

    def test_a_vote_is_no_news_for_silos(self, store: Store) -> None:
        open_task(store, "north", "south")
        seen = store.tasks.get("sepsis").revision
        vote(store, "north")
        assert store.tasks.changed_since(seen) == []
