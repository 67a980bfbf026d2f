"""What every database behind the coordinator must do when several replicas act at the same moment.

Each racer has a store of its own. Whatever the order of events, nothing is stored twice, nothing is lost, and
nobody waits in a circle: a deadlock would end a test with the database's own error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from threading import Barrier

import pytest
from patience import PATIENCE
from sqlalchemy import create_engine, select
from store_scenes import (
    ADMIN,
    HOUR,
    LATER,
    LEASE,
    NOW,
    SCHEMA,
    Press,
    acts,
    at_once,
    caller,
    consensus,
    definition,
    invite,
    join,
    open_task,
    publish_set,
    redeem,
    running,
    stored,
    token,
    vote,
)

from coordinator.round_engine import ClosedBy, Round
from coordinator.store import Store
from coordinator.store.records import MemberStatus
from coordinator.store.schema import certificates
from wire import errors
from wire.errors import Refusal
from wire.identity.identity import Role
from wire.runtime.chain import GENESIS, link_hash

RACERS = 4
SILOS = ("east", "north", "south", "west")


def chain_is_whole(store: Store) -> bool:
    """True if every entry follows the one before and the head is the last."""
    previous, links = GENESIS, store.audit.page()
    for sequence, link in enumerate(links, start=1):
        if (link.sequence, link.previous) != (sequence, previous):
            return False
        if link.hash != link_hash(previous, link.entry):
            return False
        previous = link.hash
    return (store.audit.head().sequence, store.audit.head().hash) == (len(links), previous)


def counted(store: Store, act: str) -> int:
    return sum(entry.startswith(f"{act} ") for entry in acts(store))


class RaceContract:
    """Mixed into a class with the fixtures `store` and `url`."""

    def test_replicas_that_start_together_make_the_schema_once(self, url: str) -> None:
        together = Barrier(RACERS)

        def start(_: int) -> str:
            together.wait(PATIENCE)
            opened = Store(url)
            opened.signers.keep("f" * 64, "certificate")
            pem = opened.signers.get("f" * 64)
            opened.close()
            return pem

        with ThreadPoolExecutor(RACERS) as threads:
            assert list(threads.map(start, range(RACERS))) == ["certificate"] * RACERS

    # -- members -------------------------------------------------------------------------------------

    def test_one_of_many_registrations_of_a_name_wins(self, store: Store, url: str) -> None:
        deeds = [partial(invite, name="north", number=number) for number in range(RACERS)]
        outcomes = Counter(at_once(url, deeds))
        assert outcomes == {None: 1, errors.SILO_EXISTS.code: RACERS - 1}
        assert counted(store, "member_registered") == 1

    def test_one_of_many_keys_spends_a_token(self, store: Store, url: str) -> None:
        invite(store, "north")
        deeds = [partial(redeem, name="north", key=f"key {racer}") for racer in range(RACERS)]
        outcomes = at_once(url, deeds)
        assert outcomes.count(errors.TOKEN_USED.code) == RACERS - 1
        assert counted(store, "member_joined") == 1

    def test_a_token_is_spent_or_replaced_but_nobody_waits_in_a_circle(
        self, store: Store, url: str
    ) -> None:
        for turn in range(5):
            name = f"north{turn}"
            invite(store, name)
            replace = partial(
                lambda opened, name: opened.members.register(
                    token(name, 2), NOW, ADMIN, replace_token=True
                ),
                name=name,
            )
            spent, replaced = at_once(url, [partial(redeem, name=name), replace])
            spends = spent != errors.TOKEN_UNKNOWN.code
            assert replaced == (errors.SILO_EXISTS.code if spends else None)

    def test_renewals_at_once_are_numbered_one_after_the_other(
        self, store: Store, url: str
    ) -> None:
        join(store, "north")
        press, presented = Press(), caller(store, "north")
        deeds = [
            partial(
                lambda opened, key: opened.members.renew(presented, key, LATER, press.issue),
                key=f"key {racer % 3}",
            )
            for racer in range(6)
        ]
        answers = at_once(url, deeds)
        engine = create_engine(url)
        with engine.connect() as connection:
            numbers = connection.execute(select(certificates.c.issued)).scalars().all()
        engine.dispose()
        assert sorted(numbers) == [1, 2, 3, 4]
        assert counted(store, "certificate_renewed") == 3
        # The last one stands beside the one presented; who asks again for one of the others must make a new key.
        held = {one.fingerprint for one in store.outstanding.certificates(NOW)} - {
            presented.fingerprint
        }
        assert len(held) == 1
        given = {answer.replace("certificate", "print") for answer in answers}
        assert held < given
        assert len(given - {errors.REQUEST_INVALID.code}) == 3

    def test_two_admins_who_revoke_each_other_leave_one(self, store: Store, url: str) -> None:
        for turn in range(5):
            pair = (f"anna{turn}", f"bert{turn}")
            join(store, *pair, role=Role.ADMIN)
            for admin in store.members.admins():
                if admin.status is MemberStatus.ACTIVE and admin.name not in pair:
                    store.members.revoke(Role.ADMIN, admin.name, NOW, ADMIN)
            deeds = [
                partial(
                    lambda opened, name: opened.members.revoke(Role.ADMIN, name, NOW, ADMIN),
                    name=name,
                )
                for name in pair
            ]
            assert sorted(map(str, at_once(url, deeds))) == [errors.LAST_ADMIN.code, "None"]

    def test_one_of_many_instances_gets_the_lease(self, store: Store, url: str) -> None:
        join(store, "north")
        deeds = [
            partial(
                lambda opened, one: opened.silos.take_lease(
                    caller(opened, "north"), one, "0.1", NOW, LEASE
                ),
                one=f"instance {racer}",
            )
            for racer in range(RACERS)
        ]
        outcomes = Counter(at_once(url, deeds))
        assert outcomes == {NOW + LEASE: 1, errors.SILO_RUNNING_ELSEWHERE.code: RACERS - 1}

    # -- public sets and tasks -----------------------------------------------------------------------

    def test_the_same_content_is_one_version_and_others_are_numbered(
        self, store: Store, url: str
    ) -> None:
        deeds = [
            partial(
                lambda opened, digest: opened.public_sets.add(
                    "wards", digest, 8, 100, SCHEMA, NOW, ADMIN
                )[0],
                digest=mark * 64,
            )
            for mark in "aabbcc"
        ]
        versions = [getattr(found, "version", found) for found in at_once(url, deeds)]
        assert sorted(map(str, versions)) == ["1", "1", "2", "2", "3", "3"]
        assert versions[::2] == versions[1::2]
        assert counted(store, "public_set_published") == 3

    @pytest.mark.parametrize("same", [True, False], ids=["the same", "different ones"])
    def test_a_task_is_created_once(self, store: Store, url: str, same: bool) -> None:
        publish_set(store)
        deeds = [
            partial(
                lambda opened, task: opened.tasks.create(task, NOW, ADMIN).digest,
                task=definition(quorum=2 if same else 2 + racer),
            )
            for racer in range(RACERS)
        ]
        outcomes = Counter(at_once(url, deeds))
        assert outcomes.pop(store.tasks.get("sepsis").digest) == (RACERS if same else 1)
        assert outcomes == ({} if same else {errors.TASK_EXISTS.code: RACERS - 1})
        assert counted(store, "task_created") == 1

    def test_a_deadline_that_all_replicas_see_acts_once(self, store: Store, url: str) -> None:
        current = open_task(store, "north", "south")

        def extend(opened: Store) -> bool:
            return opened.tasks.extend(current, NOW + HOUR, LATER)

        assert Counter(at_once(url, [extend] * RACERS)) == {True: 1, False: RACERS - 1}
        assert running(store.tasks.get("sepsis")).extensions == 1
        extended = running(store.tasks.get("sepsis"))

        def stall(opened: Store) -> bool:
            return opened.tasks.stall(extended, "Too few.", LATER)

        assert Counter(at_once(url, [stall] * RACERS)) == {True: 1, False: RACERS - 1}
        assert (counted(store, "round_extended"), counted(store, "task_paused")) == (1, 1)

    # -- ballots and rounds --------------------------------------------------------------------------

    @pytest.mark.parametrize("same", [True, False], ids=["the same ballot", "different ballots"])
    def test_of_racing_ballots_of_one_silo_exactly_one_is_stored(
        self, store: Store, url: str, same: bool
    ) -> None:
        open_task(store, "north", "south")
        deeds = [
            partial(vote, silo="north", payload=bytes([0 if same else racer, 7]))
            for racer in range(RACERS)
        ]
        others: object = True if same else errors.BALLOT_CONFLICT.code
        assert Counter(at_once(url, deeds)) == {False: 1, others: RACERS - 1}
        assert list(stored(store)) == ["north"]
        assert counted(store, "ballot_accepted") == 1

    def test_every_ballot_cast_at_once_counts_and_the_quorum_is_noticed(
        self, store: Store, url: str
    ) -> None:
        open_task(store, *SILOS)
        assert at_once(url, [partial(vote, silo=silo) for silo in SILOS]) == [False] * len(SILOS)
        current = running(store.tasks.get("sepsis"))
        assert current.voted == set(SILOS)
        assert current.quorum_at == LATER
        assert chain_is_whole(store)

    def test_no_ballot_slips_in_after_counting_has_begun(self, store: Store, url: str) -> None:
        current = open_task(store, *SILOS)
        for number in range(1, 6):

            def close(opened: Store, seen: Round = current) -> frozenset[str]:
                opened.tasks.begin_close(seen, ClosedBy.DEADLINE)
                return frozenset(opened.ballots.declarations("sepsis", seen.number))

            voters: list[Callable[[Store], object]] = [
                partial(vote, silo=silo, number=number) for silo in SILOS
            ]
            *votes, counting = at_once(url, [*voters, close])
            cast = {silo for silo, held in zip(SILOS, votes, strict=True) if held is False}
            late = {outcome for outcome in votes if outcome is not False}
            assert late <= {errors.ROUND_CLOSED.code}
            assert counting == cast == set(stored(store, number))
            current = running(store.tasks.publish(current, consensus(), LATER))

    def test_one_of_many_consensuses_is_published(self, store: Store, url: str) -> None:
        current = open_task(store, "north", "south")
        store.tasks.begin_close(current, ClosedBy.EVERYONE)
        deeds = [
            partial(
                lambda opened, labels: opened.tasks.publish(current, labels, LATER).latest.digest,
                labels=consensus(bytes([racer, 0])),
            )
            for racer in range(RACERS)
        ]
        assert set(at_once(url, deeds)) == {store.tasks.consensus("sepsis")[0].digest}
        assert running(store.tasks.get("sepsis")).number == 2
        assert counted(store, "consensus_published") == 1

    @pytest.mark.parametrize("opening", ["publish", "start"])
    def test_no_round_opens_for_a_silo_that_is_being_shut_out(
        self, store: Store, url: str, opening: str
    ) -> None:
        current = open_task(store, *SILOS)
        for _ in range(8):

            def open_next(opened: Store, seen: Round = current) -> object:
                if opening == "publish":
                    return opened.tasks.publish(seen, consensus(), LATER)
                return opened.tasks.start("sepsis", LATER, ADMIN)

            if opening == "publish":
                store.tasks.begin_close(current, ClosedBy.DEADLINE)
            else:
                store.tasks.pause("sepsis", "Paused.", LATER, ADMIN)
            at_once(
                url,
                [
                    open_next,
                    lambda opened: opened.members.suspend("west", LATER, ADMIN, drop_ballots=True),
                ],
            )
            current = running(store.tasks.get("sepsis"))
            assert current.expected == set(SILOS) - {"west"}
            store.members.resume("west", LATER, ADMIN)

    def test_a_crowd_leaves_a_whole_chain_and_rising_revisions(
        self, store: Store, url: str
    ) -> None:
        open_task(store, *SILOS)
        store.tasks.create(definition("stroke"), NOW, ADMIN)
        store.tasks.start("stroke", NOW, ADMIN)

        def silo(opened: Store, name: str) -> None:
            for turn in range(25):
                _tolerant(
                    lambda: opened.silos.take_lease(caller(opened, name), name, "0.1", NOW, LEASE)
                )
                number = running(opened.tasks.get("sepsis")).number
                _tolerant(partial(vote, opened, name, bytes([number % 256, 0]), number))
                moment = NOW + timedelta(seconds=turn)
                _tolerant(
                    partial(opened.silos.renew_lease, caller(opened, name), name, 1, moment, LEASE)
                )

        def scheduler(opened: Store) -> None:
            for _ in range(12):
                for task in opened.tasks.all():
                    opened.tasks.begin_close(running(task), ClosedBy.DEADLINE)
                    opened.tasks.publish(running(task), consensus(), LATER)

        def admin(opened: Store) -> None:
            for turn in range(12):
                opened.members.suspend("west", LATER, ADMIN, drop_ballots=bool(turn % 2))
                opened.members.resume("west", LATER, ADMIN)
                _tolerant(lambda: opened.tasks.pause("stroke", "Paused.", LATER, ADMIN))
                _tolerant(lambda: opened.tasks.start("stroke", LATER, ADMIN))

        heard: list[int] = []

        def watcher(opened: Store) -> None:
            for _ in range(50):
                change_bus = opened.tasks.changed_since(heard[-1] if heard else 0)
                heard.extend(task.revision for task in change_bus)

        crowd: list[Callable[[Store], None]] = [
            *(partial(silo, name=name) for name in SILOS),
            scheduler,
            scheduler,
            admin,
            watcher,
        ]
        assert at_once(url, crowd) == [None] * len(crowd)
        assert chain_is_whole(store)
        assert heard == sorted(set(heard))
        for task in ("sepsis", "stroke"):
            closed = [found.number for found in store.tasks.history(task)]
            assert closed == list(range(1, running(store.tasks.get(task)).number))
        published = counted(store, "consensus_published")
        assert published == sum(len(store.tasks.history(task)) for task in ("sepsis", "stroke"))


def _tolerant(act: Callable[[], object]) -> None:
    """In a crowd any refusal of the catalogue is a good answer; the database's own errors are not."""
    try:
        act()
    except Refusal as refusal:
        if refusal.is_a(errors.STORE_UNAVAILABLE):
            raise
