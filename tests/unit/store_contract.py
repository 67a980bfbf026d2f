"""What every database behind the coordinator must do; subclass `StoreContract` and say which one.

A backend's test module gives one fixture, `url`: an empty database that lives as long as the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier

import pytest
from sqlalchemy import create_engine, func, inspect, select

from coordinator.rounds import ClosedBy, Round
from coordinator.store import Store
from coordinator.store.records import (
    Consensus,
    IssuedCertificate,
    SiloStatus,
    TaskRecord,
    TokenRecord,
)
from coordinator.store.schema import ballots, metadata
from wire.ballot import digest
from wire.errors import (
    BALLOT_CONFLICT,
    CONSENSUS_UNKNOWN,
    LEASE_LOST,
    NOT_A_PARTICIPANT,
    PUBLIC_SET_UNKNOWN,
    ROUND_CLOSED,
    ROUND_NOT_OPEN,
    SILO_EXISTS,
    SILO_REVOKED,
    SILO_RUNNING_ELSEWHERE,
    SILO_UNKNOWN,
    TASK_EXISTS,
    TASK_NOT_RUNNING,
    TASK_UNKNOWN,
    TOKEN_EXPIRED,
    TOKEN_UNKNOWN,
    TOKEN_USED,
    TOO_FEW_SILOS,
    Fault,
    Refusal,
)
from wire.task import RoundPolicy, TaskDefinition, TaskStatus

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
LATER = NOW + timedelta(seconds=1)
HOUR = timedelta(hours=1)
LEASE = timedelta(seconds=30)
SET_DIGEST = "a" * 64
SCHEMA: dict[str, object] = {"kind": "table", "columns": [{"name": "âge", "nullable": True}]}


def refused(fault: Fault, act: Callable[[], object], *words: str) -> None:
    """Asserts that `act` is refused for this reason, in a sentence with these words."""
    with pytest.raises(Refusal) as caught:
        act()
    assert caught.value.code == fault.code, caught.value.sentence
    for word in words:
        assert word in caught.value.sentence


def token(silo: str, number: int = 1, expires_at: datetime = NOW + HOUR) -> TokenRecord:
    return TokenRecord(f"{silo}-{number}", silo, f"hash-{silo}-{number}", expires_at)


class Press:
    """Prints certificates and remembers for whom."""

    def __init__(self) -> None:
        self.printed: list[str] = []

    def issue(self, name: str) -> IssuedCertificate:
        self.printed.append(name)
        serial = len(self.printed)
        return IssuedCertificate(f"certificate {serial}", f"print-{serial}", NOW + 30 * HOUR)


def join(store: Store, *names: str) -> None:
    for name in names:
        store.silos.register(token(name), NOW, replace_token=False)
        store.silos.redeem(f"{name}-1", f"hash-{name}-1", "key", NOW, Press().issue)


def definition(name: str = "sepsis", **policy: object) -> TaskDefinition:
    rounds = RoundPolicy.model_validate({"quorum": 2, "deadline": 60, "max_rounds": 3, **policy})
    return TaskDefinition(name=name, public_set="wards", labels=("no", "yes"), rounds=rounds)


def open_task(store: Store, *silos: str, name: str = "sepsis") -> Round:
    """A running task of these silos: its first round."""
    join(store, *silos)
    store.public_sets.add("wards", SET_DIGEST, 8, 100, SCHEMA, NOW)
    store.tasks.create(definition(name), NOW)
    return running(store.tasks.start(name, NOW))


def running(task: TaskRecord) -> Round:
    assert task.open_round is not None
    return task.open_round


def vote(store: Store, silo: str, payload: bytes = b"\x01\x02", number: int = 1) -> bool:
    """Casts a ballot; True if it was held already."""
    record = store.ballots.accept("sepsis", number, silo, digest(payload), payload, LATER)
    return record.already_held


def consensus(payload: bytes = b"\x0f\x00", ballots: int = 2) -> Consensus:
    return Consensus(payload, digest(payload), changed_rows=8, abstained_rows=1, ballots=ballots)


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
        found = inspect(engine)
        for table in metadata.sorted_tables:
            there = {column["name"] for column in found.get_columns(table.name)}
            assert there == {column.name for column in table.columns}, table.name
        engine.dispose()

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

    # -- silos and their tokens ----------------------------------------------------------------------

    def test_a_registered_silo_is_invited_until_it_redeems_its_token(self, store: Store) -> None:
        invited = store.silos.register(token("north"), NOW, replace_token=False)
        assert (invited.status, invited.registered_at) == (SiloStatus.INVITED, NOW)
        press = Press()
        assert store.silos.redeem("north-1", "hash-north-1", "key", NOW, press.issue) == (
            "north",
            "certificate 1",
        )
        joined = store.silos.get("north")
        assert joined.status is SiloStatus.ACTIVE
        assert joined.certificate_fingerprint == "print-1"
        assert joined.certificate_expires_at == NOW + 30 * HOUR
        assert [silo.name for silo in store.silos.all()] == ["north"]

    def test_a_name_is_registered_once(self, store: Store) -> None:
        store.silos.register(token("north"), NOW, replace_token=False)
        again = token("north", 2)
        refused(
            SILO_EXISTS,
            lambda: store.silos.register(again, NOW, replace_token=False),
            "north",
            "invited",
        )

    def test_a_replaced_token_is_void_and_the_new_one_works(self, store: Store) -> None:
        store.silos.register(token("north"), NOW, replace_token=False)
        store.silos.register(token("north", 2), NOW, replace_token=True)
        issue = Press().issue
        refused(
            TOKEN_UNKNOWN,
            lambda: store.silos.redeem("north-1", "hash-north-1", "key", NOW, issue),
        )
        store.silos.redeem("north-2", "hash-north-2", "key", NOW, issue)
        assert store.silos.get("north").status is SiloStatus.ACTIVE

    def test_the_token_of_a_joined_silo_is_never_replaced(self, store: Store) -> None:
        join(store, "north")
        refused(
            SILO_EXISTS,
            lambda: store.silos.register(token("north", 2), NOW, replace_token=True),
            "active",
        )

    def test_the_same_key_gets_the_same_certificate_again_even_later(self, store: Store) -> None:
        store.silos.register(token("north"), NOW, replace_token=False)
        press = Press()
        answers = [
            store.silos.redeem("north-1", "hash-north-1", "key", moment, press.issue)
            for moment in (NOW, NOW + 2 * HOUR)
        ]
        assert answers[0] == answers[1]
        assert press.printed == ["north"]

    def test_another_key_cannot_redeem_a_used_token(self, store: Store) -> None:
        join(store, "north")
        press = Press()
        refused(
            TOKEN_USED,
            lambda: store.silos.redeem("north-1", "hash-north-1", "thief", NOW, press.issue),
            "north",
        )
        assert not press.printed

    def test_an_expired_token_is_refused(self, store: Store) -> None:
        store.silos.register(token("north", expires_at=NOW), NOW, replace_token=False)
        refused(
            TOKEN_EXPIRED,
            lambda: store.silos.redeem("north-1", "hash-north-1", "key", NOW, Press().issue),
            "north",
            "2026-03-01",
        )
        assert store.silos.get("north").status is SiloStatus.INVITED

    @pytest.mark.parametrize("wrong", [("nobody-1", "hash-north-1"), ("north-1", "guess")])
    def test_an_unknown_token_and_a_wrong_secret_look_alike(
        self, store: Store, wrong: tuple[str, str]
    ) -> None:
        store.silos.register(token("north"), NOW, replace_token=False)
        refused(TOKEN_UNKNOWN, lambda: store.silos.redeem(*wrong, "key", NOW, Press().issue))

    def test_a_failed_signature_leaves_the_token_unspent(self, store: Store) -> None:
        store.silos.register(token("north"), NOW, replace_token=False)

        def fail(name: str) -> IssuedCertificate:
            raise RuntimeError(name)

        with pytest.raises(RuntimeError):
            store.silos.redeem("north-1", "hash-north-1", "bad", NOW, fail)
        store.silos.redeem("north-1", "hash-north-1", "good", NOW, Press().issue)
        assert store.silos.get("north").status is SiloStatus.ACTIVE

    def test_a_revoked_silo_loses_lease_and_token(self, store: Store) -> None:
        join(store, "north")
        store.silos.take_lease("north", "one", "0.1", NOW, LEASE)
        revoked = store.silos.revoke("north")
        assert revoked.status is SiloStatus.REVOKED
        assert not revoked.connected(NOW)
        refused(
            SILO_REVOKED,
            lambda: store.silos.redeem("north-1", "hash-north-1", "key", NOW, Press().issue),
            "north",
        )
        refused(
            SILO_EXISTS,
            lambda: store.silos.register(token("north", 2), NOW, replace_token=True),
            "revoked",
        )

    def test_an_unknown_silo_is_named(self, store: Store) -> None:
        refused(SILO_UNKNOWN, lambda: store.silos.get("nowhere"), "nowhere")
        refused(SILO_UNKNOWN, lambda: store.silos.revoke("nowhere"), "nowhere")

    # -- leases --------------------------------------------------------------------------------------

    def test_a_second_instance_is_refused_by_name_while_the_lease_runs(self, store: Store) -> None:
        join(store, "north")
        assert store.silos.take_lease("north", "one", "0.1", NOW, LEASE) == NOW + LEASE
        refused(
            SILO_RUNNING_ELSEWHERE,
            lambda: store.silos.take_lease("north", "two", "0.1", NOW + LEASE / 2, LEASE),
            "north",
            "12:00:30",
        )
        held = store.silos.get("north")
        assert (held.lease_instance, held.agent_version) == ("one", "0.1")
        assert held.connected(NOW + LEASE / 2)

    def test_the_same_instance_takes_its_lease_up_again(self, store: Store) -> None:
        join(store, "north")
        store.silos.take_lease("north", "one", "0.1", NOW, LEASE)
        assert store.silos.take_lease("north", "one", "0.2", LATER, LEASE) == LATER + LEASE

    def test_a_stale_lease_is_taken_over_and_the_old_holder_learns_it(self, store: Store) -> None:
        join(store, "north")
        store.silos.take_lease("north", "one", "0.1", NOW, LEASE)
        store.silos.take_lease("north", "two", "0.1", NOW + LEASE, LEASE)
        refused(
            LEASE_LOST,
            lambda: store.silos.renew_lease("north", "one", 1, NOW + LEASE, LEASE),
            "north",
        )
        assert store.silos.get("north").lease_instance == "two"

    def test_a_heartbeat_prolongs_the_lease_and_says_what_the_silo_does(self, store: Store) -> None:
        join(store, "north")
        store.silos.take_lease("north", "one", "0.1", NOW, LEASE)
        assert store.silos.renew_lease("north", "one", 2, LATER, LEASE) == LATER + LEASE
        held = store.silos.get("north")
        assert (held.last_seen_at, held.activity) == (LATER, 2)

    def test_a_released_lease_is_free_at_once_but_only_its_holder_releases_it(
        self, store: Store
    ) -> None:
        join(store, "north")
        store.silos.take_lease("north", "one", "0.1", NOW, LEASE)
        store.silos.release_lease("north", "two", LATER)
        assert store.silos.get("north").connected(LATER)
        store.silos.release_lease("north", "one", LATER)
        assert not store.silos.get("north").connected(LATER)
        store.silos.take_lease("north", "two", "0.1", LATER, LEASE)

    # -- public sets ---------------------------------------------------------------------------------

    def test_a_new_content_is_a_new_version_and_the_same_content_the_same(
        self, store: Store
    ) -> None:
        first, held = store.public_sets.add("wards", SET_DIGEST, 8, 100, SCHEMA, NOW)
        assert (first.version, held) == (1, False)
        assert store.public_sets.add("wards", SET_DIGEST, 8, 100, SCHEMA, LATER) == (first, True)
        second, _ = store.public_sets.add("wards", "b" * 64, 9, 120, SCHEMA, LATER)
        assert second.version == 2
        assert [found.version for found in store.public_sets.all()] == [2, 1]
        other, _ = store.public_sets.add("clinics", SET_DIGEST, 8, 100, SCHEMA, LATER)
        assert (other.name, other.version) == ("clinics", 1)

    def test_a_set_is_found_by_digest_by_name_and_by_version(self, store: Store) -> None:
        first, _ = store.public_sets.add("wards", SET_DIGEST, 8, 100, SCHEMA, NOW)
        second, _ = store.public_sets.add("wards", "b" * 64, 9, 120, SCHEMA, LATER)
        assert store.public_sets.find("wards") == second
        assert store.public_sets.find("wards@1") == first
        assert store.public_sets.find(SET_DIGEST) == first
        assert first.schema == SCHEMA

    @pytest.mark.parametrize("unknown", ["ward", "wards@3", "c" * 64])
    def test_an_unknown_set_is_named(self, store: Store, unknown: str) -> None:
        store.public_sets.add("wards", SET_DIGEST, 8, 100, SCHEMA, NOW)
        refused(PUBLIC_SET_UNKNOWN, lambda: store.public_sets.find(unknown), unknown)

    # -- tasks ---------------------------------------------------------------------------------------

    def test_a_task_is_created_once_with_its_public_set_resolved(self, store: Store) -> None:
        store.public_sets.add("wards", SET_DIGEST, 8, 100, SCHEMA, NOW)
        made = store.tasks.create(definition(), NOW)
        assert made.status is TaskStatus.DRAFT
        assert (made.definition.public_set, made.definition.rows) == (SET_DIGEST, 8)
        assert made.digest == made.definition.digest
        assert store.tasks.create(definition(), LATER) == made
        refused(TASK_EXISTS, lambda: store.tasks.create(definition(quorum=1), NOW), "sepsis")
        assert [task.name for task in store.tasks.all()] == ["sepsis"]

    def test_a_task_needs_a_public_set_and_a_name_that_exists(self, store: Store) -> None:
        refused(PUBLIC_SET_UNKNOWN, lambda: store.tasks.create(definition(), NOW), "wards")
        for ask in (store.tasks.get, store.tasks.consensus):
            with pytest.raises(Refusal) as caught:
                ask("sepsis")
            assert caught.value.is_a(TASK_UNKNOWN, CONSENSUS_UNKNOWN)

    def test_too_few_silos_cannot_start_and_revoked_ones_do_not_count(self, store: Store) -> None:
        join(store, "north", "south")
        store.silos.register(token("west"), NOW, replace_token=False)
        store.silos.revoke("south")
        store.public_sets.add("wards", SET_DIGEST, 8, 100, SCHEMA, NOW)
        store.tasks.create(definition(), NOW)
        refused(TOO_FEW_SILOS, lambda: store.tasks.start("sepsis", NOW), "needs 2", "1 can")
        assert store.tasks.get("sepsis").status is TaskStatus.DRAFT

    def test_starting_opens_the_first_round_and_starting_again_changes_nothing(
        self, store: Store
    ) -> None:
        first = open_task(store, "north", "south")
        assert first.number == 1
        assert first.expected == {"north", "south"}
        assert (first.opened_at, first.closes_at) == (NOW, NOW + timedelta(seconds=60))
        assert running(store.tasks.start("sepsis", LATER)) == first

    def test_a_task_for_named_silos_expects_only_them(self, store: Store) -> None:
        join(store, "north", "south", "west")
        store.public_sets.add("wards", SET_DIGEST, 8, 100, SCHEMA, NOW)
        chosen = definition().model_copy(update={"silos": ("west", "north")})
        store.tasks.create(chosen, NOW)
        assert running(store.tasks.start("sepsis", NOW)).expected == {"north", "west"}

    def test_a_paused_task_goes_on_in_the_same_round_with_its_ballots(self, store: Store) -> None:
        current = open_task(store, "north", "south")
        vote(store, "north")
        store.tasks.extend(current, LATER)
        assert store.tasks.pause("sepsis", "Too few.").reason == "Too few."
        refused(TASK_NOT_RUNNING, lambda: store.tasks.pause("sepsis", "Again."), "paused")
        join(store, "west")
        resumed = store.tasks.start("sepsis", NOW + HOUR)
        assert (resumed.status, resumed.reason) == (TaskStatus.RUNNING, "")
        goes_on = running(resumed)
        assert (goes_on.number, goes_on.extensions) == (1, 0)
        assert goes_on.voted == {"north"}
        assert goes_on.closes_at == NOW + HOUR + timedelta(seconds=60)
        assert goes_on.expected == {"north", "south", "west"}

    def test_an_extension_moves_the_deadline_and_is_counted(self, store: Store) -> None:
        current = open_task(store, "north", "south")
        store.tasks.extend(current, NOW + HOUR)
        extended = running(store.tasks.get("sepsis"))
        assert (extended.closes_at, extended.extensions) == (NOW + HOUR, 1)

    # -- ballots -------------------------------------------------------------------------------------

    def test_a_ballot_is_stored_and_handed_back_bit_by_bit(self, store: Store) -> None:
        open_task(store, "north", "south")
        vote(store, "south", b"\x00\xff")
        vote(store, "north", b"\x01\x80")
        assert list(store.ballots.payloads("sepsis", 1)) == [
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
            store.ballots.accept("sepsis", 1, silo, "d" * 64, b"\x01", moment)
        assert running(store.tasks.get("sepsis")).quorum_at == NOW + timedelta(minutes=2)

    def test_the_same_ballot_again_is_the_same_record(self, store: Store) -> None:
        open_task(store, "north", "south")
        payload = b"\x01\x02"
        first = store.ballots.accept("sepsis", 1, "north", digest(payload), payload, LATER)
        again = store.ballots.accept("sepsis", 1, "north", digest(payload), payload, NOW + HOUR)
        assert (first.already_held, again.already_held) == (False, True)
        assert (again.accepted_at, again.digest) == (LATER, first.digest)
        assert len(list(store.ballots.payloads("sepsis", 1))) == 1

    def test_a_different_second_ballot_is_a_conflict_and_the_first_stands(
        self, store: Store
    ) -> None:
        current = open_task(store, "north", "south")
        vote(store, "north", b"\x01\x02")
        refused(BALLOT_CONFLICT, lambda: vote(store, "north", b"\x03\x04"), "north", "round 1")
        vote(store, "south")
        store.tasks.begin_close(current, ClosedBy.EVERYONE)
        refused(BALLOT_CONFLICT, lambda: vote(store, "north", b"\x03\x04"))
        assert dict(store.ballots.payloads("sepsis", 1))["north"] == b"\x01\x02"

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
        store.tasks.pause("sepsis", "Paused by admin.")
        refused(TASK_NOT_RUNNING, lambda: vote(store, "south"), "paused")
        assert vote(store, "north")

    def test_a_ballot_for_an_unknown_or_unstarted_task_is_refused(self, store: Store) -> None:
        refused(TASK_UNKNOWN, lambda: vote(store, "north"), "sepsis")
        join(store, "north", "south")
        store.public_sets.add("wards", SET_DIGEST, 8, 100, SCHEMA, NOW)
        store.tasks.create(definition(), NOW)
        refused(ROUND_CLOSED, lambda: vote(store, "north"))

    @pytest.mark.parametrize("same", [True, False], ids=["the same ballot", "different ballots"])
    def test_of_racing_ballots_of_one_silo_exactly_one_is_stored(
        self, store: Store, url: str, same: bool
    ) -> None:
        open_task(store, "north", "south")
        racers, repetitions = 4, 5
        stores = [Store(url) for _ in range(racers)]
        together = Barrier(racers)

        def race(racer: int) -> str:
            together.wait()
            payload = bytes([0 if same else racer, 7])
            try:
                held = vote(stores[racer], "north", payload)
            except Refusal as refusal:
                return refusal.code
            return "held" if held else "stored"

        with ThreadPoolExecutor(racers) as threads:
            first = sorted(threads.map(race, range(racers)))
            for _ in range(repetitions):
                assert "stored" not in threads.map(race, range(racers))
        others = "held" if same else BALLOT_CONFLICT.code
        assert first == sorted(["stored"] + [others] * (racers - 1))
        assert stored_ballots(url) == 1
        for opened in stores:
            opened.close()

    # -- closing -------------------------------------------------------------------------------------

    def test_closing_begins_once_and_keeps_its_first_reason(self, store: Store) -> None:
        current = open_task(store, "north", "south")
        assert store.tasks.begin_close(current, ClosedBy.GRACE)
        assert store.tasks.begin_close(current, ClosedBy.DEADLINE)
        assert running(store.tasks.get("sepsis")).closing is ClosedBy.GRACE
        store.tasks.publish(current, consensus(), LATER)
        assert not store.tasks.begin_close(current, ClosedBy.DEADLINE)

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
        refused(TASK_NOT_RUNNING, lambda: store.tasks.start("sepsis", LATER), "finished")
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
        store.public_sets.add("wards", SET_DIGEST, 8, 100, SCHEMA, NOW)
        join(store, "north", "south")
        for name in ("sepsis", "stroke"):
            store.tasks.create(definition(name), NOW)
        assert store.tasks.changed_since(0) == []
        for name in ("stroke", "sepsis"):
            store.tasks.start(name, NOW)
        heard = store.tasks.changed_since(0)
        assert [task.name for task in heard] == ["stroke", "sepsis"]
        current = running(heard[1])
        store.tasks.begin_close(current, ClosedBy.EVERYONE)
        for change in (
            lambda: store.tasks.extend(current, LATER),
            lambda: store.tasks.pause("sepsis", "Paused."),
            lambda: store.tasks.start("sepsis", LATER),
            lambda: store.tasks.publish(current, consensus(), LATER),
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


def stored_ballots(url: str) -> int:
    """How many ballots the database holds, read past the store."""
    engine = create_engine(url)
    with engine.connect() as connection:
        count = connection.scalar(select(func.count()).select_from(ballots))
    engine.dispose()
    assert count is not None
    return count
