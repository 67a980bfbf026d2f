"""What every database behind the coordinator must do with members: tokens, certificates, standing, leases."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from store_scenes import (
    ADMIN,
    HOUR,
    LATER,
    LEASE,
    NOW,
    Press,
    acts,
    caller,
    consensus,
    invite,
    join,
    open_task,
    redeem,
    refused,
    running,
    stored,
    token,
    vote,
)

from coordinator.round_engine import ClosedBy
from coordinator.store import Store
from coordinator.store.actors import LocalActor
from coordinator.store.records import IssuedCertificate, MemberStatus
from wire import errors
from wire.identity.identity import Role


def renew(store: Store, name: str, key: str, press: Press, fingerprint: str | None = None) -> str:
    """A further certificate, asked for with the one named, or with the newest: its fingerprint."""
    by = caller(store, name, fingerprint=fingerprint)
    return store.members.renew(by, key, LATER, press.issue).replace("certificate", "print")


def admit(store: Store, name: str, fingerprint: str, role: Role = Role.SILO) -> bool:
    return store.members.admit(caller(store, name, role, fingerprint))


class MemberContract:
    """Mixed into a class with the fixtures `store` and `url`."""

    # -- joining -------------------------------------------------------------------------------------

    def test_a_registered_silo_is_invited_until_it_redeems_its_token(self, store: Store) -> None:
        invite(store, "north")
        invited = store.silos.get("north")
        assert (invited.status, invited.registered_at) == (MemberStatus.INVITED, NOW)
        assert invited.certificate_expires_at is None
        admit(store, "north", redeem(store, "north"))
        joined = store.silos.get("north")
        assert joined.status is MemberStatus.ACTIVE
        assert joined.certificate_expires_at == NOW + 30 * HOUR
        assert acts(store) == [
            f"member_registered silo/north by {ADMIN}",
            "member_joined silo/north by silo/north",
        ]

    def test_admins_join_as_silos_do_and_the_names_do_not_collide(self, store: Store) -> None:
        join(store, "north")
        store.members.register(token("north", 2, role=Role.ADMIN), NOW, ADMIN, replace_token=False)
        fingerprint = redeem(store, "north", 2)
        admit(store, "north", fingerprint, Role.ADMIN)
        refused(errors.CERTIFICATE_SUPERSEDED, lambda: admit(store, "north", fingerprint))
        assert [(admin.name, admin.status) for admin in store.members.admins()] == [
            ("north", MemberStatus.ACTIVE)
        ]

    def test_an_admin_is_readmitted_whatever_it_was_and_what_it_held_is_void(
        self, store: Store
    ) -> None:
        press = Press()
        join(store, "chief", "lost", "gone", role=Role.ADMIN)
        invite(store, "asked", role=Role.ADMIN)
        store.members.revoke(Role.ADMIN, "gone", NOW, ADMIN)
        lost = caller(store, "lost", Role.ADMIN)
        old = store.members.renew(lost, "next", LATER, press.issue).replace("certificate", "print")
        for name in ("lost", "gone", "asked", "new"):
            fresh = press.issue(Role.ADMIN, name)
            store.members.readmit_admin(
                name, f"key of {name}", fresh, LATER, LocalActor("host/root")
            )
            admit(store, name, fresh.fingerprint, Role.ADMIN)
            assert acts(store)[-1] == f"admin_admitted admin/{name} by host/root"
        refused(errors.CERTIFICATE_SUPERSEDED, lambda: admit(store, "lost", old, Role.ADMIN))
        refused(errors.TOKEN_UNKNOWN, lambda: redeem(store, "asked"))
        assert {admin.status for admin in store.members.admins()} == {MemberStatus.ACTIVE}

    def test_a_name_is_registered_once(self, store: Store) -> None:
        invite(store, "north")
        refused(errors.SILO_EXISTS, lambda: invite(store, "north", 2), "north", "invited")
        assert len(acts(store)) == 1

    def test_a_replaced_token_is_void_and_the_new_one_works(self, store: Store) -> None:
        invite(store, "north")
        store.members.register(token("north", 2), NOW, ADMIN, replace_token=True)
        refused(errors.TOKEN_UNKNOWN, lambda: redeem(store, "north"))
        redeem(store, "north", 2)
        assert store.silos.get("north").status is MemberStatus.ACTIVE

    def test_the_token_of_a_joined_silo_is_never_replaced(self, store: Store) -> None:
        join(store, "north")
        refused(
            errors.SILO_EXISTS,
            lambda: store.members.register(token("north", 2), NOW, ADMIN, replace_token=True),
            "active",
        )

    def test_the_same_key_gets_the_same_certificate_again_even_later(self, store: Store) -> None:
        invite(store, "north")
        press = Press()
        answers = [
            store.members.redeem("north-1", "hash-north-1", "key", moment, press.issue)
            for moment in (NOW, NOW + 2 * HOUR)
        ]
        assert answers[0] == answers[1]
        assert press.printed == ["north"]
        assert len(acts(store)) == 2

    def test_another_key_cannot_redeem_a_used_token(self, store: Store) -> None:
        join(store, "north")
        before, press = acts(store), Press()
        refused(
            errors.TOKEN_USED, lambda: redeem(store, "north", key="thief", press=press), "north"
        )
        assert not press.printed
        assert acts(store) == before

    def test_an_expired_token_is_refused(self, store: Store) -> None:
        store.members.register(token("north", expires_at=NOW), NOW, ADMIN, replace_token=False)
        refused(errors.TOKEN_EXPIRED, lambda: redeem(store, "north"), "north", "2026-03-01")
        assert store.silos.get("north").status is MemberStatus.INVITED

    @pytest.mark.parametrize("wrong", [("nobody-1", "hash-north-1"), ("north-1", "guess")])
    def test_an_unknown_token_and_a_wrong_secret_look_alike(
        self, store: Store, wrong: tuple[str, str]
    ) -> None:
        invite(store, "north")
        issue = Press().issue
        refused(errors.TOKEN_UNKNOWN, lambda: store.members.redeem(*wrong, "key", NOW, issue))

    def test_a_failed_signature_leaves_the_token_unspent_and_no_trace(self, store: Store) -> None:
        invite(store, "north")
        before = acts(store)

        def fail(role: Role, name: str) -> IssuedCertificate:
            raise RuntimeError(name)

        with pytest.raises(RuntimeError):
            store.members.redeem("north-1", "hash-north-1", "bad", NOW, fail)
        assert acts(store) == before
        redeem(store, "north", key="good")
        assert store.silos.get("north").status is MemberStatus.ACTIVE

    def test_a_key_is_certified_for_one_member_only(self, store: Store) -> None:
        join(store, "north")
        invite(store, "south")
        refused(errors.REQUEST_INVALID, lambda: redeem(store, "south", key="key-north-1"), "before")
        assert store.silos.get("south").status is MemberStatus.INVITED

    # -- certificates that follow each other ---------------------------------------------------------

    def test_old_and_new_certificate_are_good_until_the_new_one_is_used(self, store: Store) -> None:
        invite(store, "north")
        old = redeem(store, "north")
        new = renew(store, "north", "second key", Press())
        for fingerprint in (old, old, new, new):
            admit(store, "north", fingerprint)
        refused(errors.CERTIFICATE_SUPERSEDED, lambda: admit(store, "north", old), "north")

    def test_a_member_holds_two_good_certificates_at_most(self, store: Store) -> None:
        invite(store, "north")
        press = Press()
        first = redeem(store, "north", press=press)
        second, third = (renew(store, "north", key, press, first) for key in ("two", "three"))
        refused(errors.CERTIFICATE_SUPERSEDED, lambda: admit(store, "north", second))
        assert not admit(store, "north", first)
        assert admit(store, "north", third)
        refused(errors.CERTIFICATE_SUPERSEDED, lambda: admit(store, "north", first))

    def test_lost_answers_lock_nobody_out(self, store: Store) -> None:
        invite(store, "north")
        press = Press()
        held = redeem(store, "north", press=press)
        for attempt in range(5):
            latest = renew(store, "north", f"key {attempt}", press, held)
        # A key whose certificate was withdrawn unseen is refused by a code after which agents make a new one.
        refused(errors.REQUEST_INVALID, lambda: renew(store, "north", "key 0", press, held))
        assert admit(store, "north", latest)

    def test_who_was_superseded_does_not_renew(self, store: Store) -> None:
        invite(store, "north")
        press = Press()
        copied = redeem(store, "north", press=press)
        admit(store, "north", renew(store, "north", "two", press, copied))
        before = acts(store)
        refused(
            errors.CERTIFICATE_SUPERSEDED, lambda: renew(store, "north", "thief", press, copied)
        )
        assert acts(store) == before

    def test_a_copied_key_does_not_outlive_revocation_and_joining_again(self, store: Store) -> None:
        invite(store, "north")
        stolen = redeem(store, "north")
        store.members.revoke(Role.SILO, "north", NOW, ADMIN)
        invite(store, "north", 2)
        redeem(store, "north", 2)
        refused(
            errors.CERTIFICATE_SUPERSEDED,
            lambda: renew(store, "north", "thief", Press(), stolen),
        )

    def test_a_renewal_may_be_asked_for_again_with_the_same_key(self, store: Store) -> None:
        join(store, "north")
        press = Press()
        answers = [renew(store, "north", "second key", press) for _ in range(2)]
        assert answers[0] == answers[1]
        assert press.printed == ["north"]
        assert acts(store)[2:] == ["certificate_renewed silo/north by silo/north"]

    @pytest.mark.parametrize(
        ("shut_out", "fault"),
        [
            (lambda s: s.members.revoke(Role.SILO, "north", NOW, ADMIN), errors.SILO_REVOKED),
            (
                lambda s: s.members.suspend("north", NOW, ADMIN, drop_ballots=False),
                errors.SILO_SUSPENDED,
            ),
        ],
        ids=["revoked", "suspended"],
    )
    def test_whoever_is_shut_out_is_neither_admitted_nor_renewed(
        self, store: Store, shut_out: Callable[[Store], None], fault: errors.Fault
    ) -> None:
        invite(store, "north")
        fingerprint = redeem(store, "north")
        shut_out(store)
        before, press = acts(store), Press()
        refused(fault, lambda: admit(store, "north", fingerprint), "north")
        refused(fault, lambda: renew(store, "north", "late key", press), "north")
        assert (acts(store), press.printed) == (before, [])

    def test_nobody_is_admitted_by_name_alone(self, store: Store) -> None:
        refused(errors.SILO_UNKNOWN, lambda: admit(store, "north", "print"), "north")
        refused(errors.ADMIN_UNKNOWN, lambda: admit(store, "eve", "print", Role.ADMIN), "eve")
        invite(store, "north")
        refused(errors.CERTIFICATE_SUPERSEDED, lambda: admit(store, "north", "print"))

    # -- suspended, resumed, revoked -----------------------------------------------------------------

    def test_a_suspended_silo_comes_back_with_its_certificate(self, store: Store) -> None:
        invite(store, "north")
        fingerprint = redeem(store, "north")
        store.members.suspend("north", NOW, ADMIN, drop_ballots=False)
        store.members.resume("north", LATER, ADMIN)
        store.members.resume("north", LATER, ADMIN)
        admit(store, "north", fingerprint)
        assert acts(store)[2:] == [
            f"silo_suspended silo/north by {ADMIN}",
            f"silo_resumed silo/north by {ADMIN}",
        ]

    def test_a_revoked_silo_loses_lease_token_and_certificate(self, store: Store) -> None:
        join(store, "north")
        store.silos.take_lease(caller(store, "north"), "one", "0.1", NOW, LEASE)
        store.members.revoke(Role.SILO, "north", NOW, ADMIN)
        revoked = store.silos.get("north")
        assert revoked.status is MemberStatus.REVOKED
        assert not revoked.connected(NOW)
        assert revoked.certificate_expires_at is None
        refused(errors.SILO_REVOKED, lambda: redeem(store, "north"), "north")
        refused(errors.SILO_REVOKED, lambda: store.members.resume("north", NOW, ADMIN), "north")

    def test_a_revoked_name_may_be_registered_anew_but_its_past_stays_shut_out(
        self, store: Store
    ) -> None:
        invite(store, "north")
        past = redeem(store, "north")
        store.members.revoke(Role.SILO, "north", NOW, ADMIN)
        invite(store, "north", 2)
        refused(errors.CERTIFICATE_SUPERSEDED, lambda: admit(store, "north", past))
        refused(errors.TOKEN_UNKNOWN, lambda: redeem(store, "north", 1))
        refused(errors.REQUEST_INVALID, lambda: redeem(store, "north", 2, key="key-north-1"))
        admit(store, "north", redeem(store, "north", 2))
        refused(errors.CERTIFICATE_SUPERSEDED, lambda: admit(store, "north", past))

    def test_a_silo_shut_out_with_its_ballot_dropped_is_not_waited_for(self, store: Store) -> None:
        open_task(store, "east", "north", "south")
        vote(store, "north")
        vote(store, "south")
        revision = store.tasks.get("sepsis").revision
        store.members.revoke(Role.SILO, "north", LATER, ADMIN, drop_ballots=True)
        current = running(store.tasks.get("sepsis"))
        assert current.expected == {"east", "south"}
        assert current.voted == {"south"}
        assert current.quorum_at is None
        assert store.tasks.get("sepsis").revision > revision
        assert acts(store)[-2:] == [
            f"member_revoked silo/north by {ADMIN}",
            f"ballot_dropped task/sepsis by {ADMIN}",
        ]
        vote(store, "east")
        assert running(store.tasks.get("sepsis")).quorum_at == LATER

    def test_a_silo_shut_out_with_its_ballot_kept_is_counted_this_once(self, store: Store) -> None:
        current = open_task(store, "east", "north", "south")
        vote(store, "north")
        store.members.suspend("north", LATER, ADMIN, drop_ballots=False)
        assert running(store.tasks.get("sepsis")).voted == {"north"}
        vote(store, "south")
        store.tasks.begin_close(current, ClosedBy.DEADLINE)
        opened = running(store.tasks.publish(current, consensus(), LATER))
        assert opened.expected == {"east", "south"}

    def test_a_silo_that_had_not_voted_is_not_waited_for(self, store: Store) -> None:
        open_task(store, "east", "north", "south")
        store.members.suspend("north", LATER, ADMIN, drop_ballots=False)
        assert running(store.tasks.get("sepsis")).expected == {"east", "south"}
        refused(errors.SILO_SUSPENDED, lambda: vote(store, "north"))
        store.members.resume("north", LATER, ADMIN)
        assert running(store.tasks.get("sepsis")).expected == {"east", "south"}
        refused(errors.NOT_A_PARTICIPANT, lambda: vote(store, "north"))

    def test_a_ballot_that_is_being_counted_is_never_dropped(self, store: Store) -> None:
        current = open_task(store, "north", "south")
        vote(store, "north")
        vote(store, "south")
        store.tasks.begin_close(current, ClosedBy.EVERYONE)
        store.members.revoke(Role.SILO, "north", LATER, ADMIN, drop_ballots=True)
        assert list(stored(store)) == ["north", "south"]

    def test_the_last_active_admin_stays(self, store: Store) -> None:
        join(store, "chief", "deputy", role=Role.ADMIN)
        store.members.revoke(Role.ADMIN, "chief", NOW, LocalActor("admin/deputy"))
        before = acts(store)
        refused(
            errors.LAST_ADMIN,
            lambda: store.members.revoke(Role.ADMIN, "deputy", NOW, LocalActor("admin/deputy")),
            "deputy",
        )
        assert acts(store) == before

    def test_an_unknown_member_is_named(self, store: Store) -> None:
        refused(errors.SILO_UNKNOWN, lambda: store.silos.get("nowhere"), "nowhere")
        for act in (
            lambda: store.members.revoke(Role.SILO, "nowhere", NOW, ADMIN),
            lambda: store.members.suspend("nowhere", NOW, ADMIN, drop_ballots=True),
            lambda: store.members.resume("nowhere", NOW, ADMIN),
        ):
            refused(errors.SILO_UNKNOWN, act, "nowhere")
        assert acts(store) == []

    # -- leases --------------------------------------------------------------------------------------

    def test_a_second_instance_is_refused_by_name_while_the_lease_runs(self, store: Store) -> None:
        join(store, "north")
        assert (
            store.silos.take_lease(caller(store, "north"), "one", "0.1", NOW, LEASE) == NOW + LEASE
        )
        refused(
            errors.SILO_RUNNING_ELSEWHERE,
            lambda: store.silos.take_lease(
                caller(store, "north"), "two", "0.1", NOW + LEASE / 2, LEASE
            ),
            "north",
            "12:00:30",
        )
        held = store.silos.get("north")
        assert (held.lease_instance, held.agent_version) == ("one", "0.1")
        assert held.connected(NOW + LEASE / 2)

    def test_the_same_instance_takes_its_lease_up_again(self, store: Store) -> None:
        join(store, "north")
        store.silos.take_lease(caller(store, "north"), "one", "0.1", NOW, LEASE)
        assert (
            store.silos.take_lease(caller(store, "north"), "one", "0.2", LATER, LEASE)
            == LATER + LEASE
        )

    def test_a_stale_lease_is_taken_over_and_the_old_holder_learns_it(self, store: Store) -> None:
        join(store, "north")
        store.silos.take_lease(caller(store, "north"), "one", "0.1", NOW, LEASE)
        store.silos.take_lease(caller(store, "north"), "two", "0.1", NOW + LEASE, LEASE)
        refused(
            errors.LEASE_LOST,
            lambda: store.silos.renew_lease(caller(store, "north"), "one", 1, NOW + LEASE, LEASE),
            "north",
        )
        assert store.silos.get("north").lease_instance == "two"

    def test_a_heartbeat_prolongs_the_lease_and_says_what_the_silo_does(self, store: Store) -> None:
        join(store, "north")
        store.silos.take_lease(caller(store, "north"), "one", "0.1", NOW, LEASE)
        assert (
            store.silos.renew_lease(caller(store, "north"), "one", 2, LATER, LEASE) == LATER + LEASE
        )
        held = store.silos.get("north")
        assert (held.last_seen_at, held.activity) == (LATER, 2)

    def test_a_released_lease_is_free_at_once_but_only_its_holder_releases_it(
        self, store: Store
    ) -> None:
        join(store, "north")
        store.silos.take_lease(caller(store, "north"), "one", "0.1", NOW, LEASE)
        store.silos.release_lease(caller(store, "north"), "two", LATER)
        assert store.silos.get("north").connected(LATER)
        store.silos.release_lease(caller(store, "north"), "one", LATER)
        assert not store.silos.get("north").connected(LATER)
        store.silos.take_lease(caller(store, "north"), "two", "0.1", LATER, LEASE)
