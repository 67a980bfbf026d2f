"""What every database behind the coordinator must do for a caller that is no longer good: nothing.

Each act is made by a caller that was admitted before; what happened since is what counts.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest
from patience import PATIENCE
from store_scenes import (
    ADMIN,
    LATER,
    LEASE,
    NOW,
    SCHEMA,
    Press,
    acts,
    ballot,
    caller,
    definition,
    invite,
    join,
    open_task,
    redeem,
    refused,
    token,
)

from coordinator.store import Store
from coordinator.store.actors import Caller
from coordinator.store.records import ExtractorRecord, MemberStatus
from wire import errors
from wire.identity.identity import Role

Act = Callable[[Store, Caller], object]

SILO_ACTS: Final[dict[str, Act]] = {
    "silos.take_lease": lambda s, by: s.silos.take_lease(by, "one", "0.1", NOW, LEASE),
    "silos.renew_lease": lambda s, by: s.silos.renew_lease(by, "one", 1, NOW, LEASE),
    "silos.release_lease": lambda s, by: s.silos.release_lease(by, "one", NOW),
    "ballots.accept": lambda s, by: s.ballots.accept(by, ballot(by.name), b"\x01\x02"),
    "members.renew": lambda s, by: s.members.renew(by, "new key", NOW, Press().issue),
}
ADMIN_ACTS: Final[dict[str, Act]] = {
    "members.register": lambda s, by: s.members.register(
        token("eve", role=Role.ADMIN), NOW, by, replace_token=False
    ),
    "members.suspend": lambda s, by: s.members.suspend("north", NOW, by, drop_ballots=False),
    "members.resume": lambda s, by: s.members.resume("north", NOW, by),
    "members.revoke": lambda s, by: s.members.revoke(Role.SILO, "north", NOW, by),
    "members.renew": SILO_ACTS["members.renew"],
    "public_sets.add": lambda s, by: s.public_sets.add("new", "b" * 64, 1, 1, SCHEMA, NOW, by),
    "extractors.add": lambda s, by: s.extractors.add(
        ExtractorRecord("c" * 64, "a" * 64, "pca", 2, 1, NOW), by
    ),
    "tasks.create": lambda s, by: s.tasks.create(definition("other"), NOW, by),
    "tasks.start": lambda s, by: s.tasks.start("sepsis", NOW, by),
    "tasks.pause": lambda s, by: s.tasks.pause("sepsis", "Paused.", NOW, by),
}


def revoke(store: Store, by: Caller) -> errors.Fault:
    store.members.revoke(by.role, by.name, NOW, ADMIN)
    return errors.SILO_REVOKED if by.role is Role.SILO else errors.ADMIN_REVOKED


def supersede(store: Store, by: Caller) -> errors.Fault:
    pem = store.members.renew(by, "next key", NOW, Press().issue)
    store.members.admit(Caller(by.identity, pem.replace("certificate", "print")))
    return errors.CERTIFICATE_SUPERSEDED


def join_again(store: Store, by: Caller) -> errors.Fault:
    revoke(store, by)
    invite(store, by.name, 2, role=by.role)
    redeem(store, by.name, 2)
    return errors.CERTIFICATE_SUPERSEDED


CHANGES = [revoke, supersede, join_again]


class StandingContract:
    """Mixed into a class with the fixtures `store` and `url`."""

    @pytest.mark.parametrize("change", CHANGES)
    @pytest.mark.parametrize(
        ("role", "act"),
        [(Role.SILO, act) for act in SILO_ACTS] + [(Role.ADMIN, act) for act in ADMIN_ACTS],
    )
    def test_no_act_of_a_caller_that_is_no_longer_good(
        self, store: Store, role: Role, act: str, change: Callable[[Store, Caller], errors.Fault]
    ) -> None:
        open_task(store, "north", "south")
        join(store, "ada", "zoe", role=Role.ADMIN)
        by = caller(store, "north" if role is Role.SILO else "ada", role)
        store.silos.take_lease(caller(store, "north"), "one", "0.1", NOW, LEASE)
        store.members.admit(by)
        fault = change(store, by)
        before = acts(store), store.silos.get("north"), store.tasks.get("sepsis")
        acting = SILO_ACTS | ADMIN_ACTS
        refused(fault, lambda: acting[act](store, by), by.name)
        assert (acts(store), store.silos.get("north"), store.tasks.get("sepsis")) == before

    @pytest.mark.parametrize("act", SILO_ACTS)
    def test_no_act_of_a_suspended_silo(self, store: Store, act: str) -> None:
        open_task(store, "north", "south")
        by = caller(store, "north")
        store.members.suspend("north", NOW, ADMIN, drop_ballots=False)
        before = acts(store)
        refused(errors.SILO_SUSPENDED, lambda: SILO_ACTS[act](store, by))
        assert acts(store) == before

    def test_calls_under_way_are_judged_by_member_and_certificate(self, store: Store) -> None:
        join(store, "north", "south", "west")
        join(store, "ada", "zoe", role=Role.ADMIN)
        good, old, out = (caller(store, name) for name in ("north", "south", "west"))
        admin = caller(store, "ada", Role.ADMIN)
        supersede(store, old)
        store.members.suspend("west", NOW, ADMIN, drop_ballots=False)
        store.members.revoke(Role.ADMIN, "ada", NOW, ADMIN)
        found = store.members.refusals({good, old, out, admin})
        assert {who.name: refusal.code for who, refusal in found.items()} == {
            "south": "CERTIFICATE_SUPERSEDED",
            "west": "SILO_SUSPENDED",
            "ada": "ADMIN_REVOKED",
        }

    def test_a_suspended_silo_redeems_no_token(self, store: Store) -> None:
        invite(store, "north")
        store.members.suspend("north", NOW, ADMIN, drop_ballots=False)
        refused(errors.SILO_SUSPENDED, lambda: redeem(store, "north"))
        assert store.silos.get("north").status is MemberStatus.SUSPENDED
        store.members.resume("north", NOW, ADMIN)
        assert store.silos.get("north").status is MemberStatus.INVITED
        redeem(store, "north")
        assert store.silos.get("north").status is MemberStatus.ACTIVE
        store.members.suspend("north", NOW, ADMIN, drop_ballots=False)
        # The same key again, as after a lost answer: not while it is shut out.
        refused(errors.SILO_SUSPENDED, lambda: redeem(store, "north"))

    @pytest.mark.parametrize("how", ["revoked", "readmitted"])
    def test_tokens_that_an_admin_made_end_with_it(self, store: Store, how: str) -> None:
        join(store, "ada", "zoe", role=Role.ADMIN)
        ada, zoe = (caller(store, name, Role.ADMIN) for name in ("ada", "zoe"))
        for name, role, by in [
            ("eve", Role.ADMIN, ada),
            ("north", Role.SILO, ada),
            ("south", Role.SILO, zoe),
            ("west", Role.SILO, ada),
        ]:
            store.members.register(token(name, role=role), NOW, by, replace_token=False)
        redeem(store, "west")
        if how == "revoked":
            store.members.revoke(Role.ADMIN, "ada", NOW, zoe)
            assert store.audit.page()[-1].entry["details"] == {"tokens_voided": 2}
        else:
            fresh = Press().issue(Role.ADMIN, "ada")
            store.members.readmit_admin("ada", "fresh key", fresh, NOW, ADMIN)
        for name in ("eve", "north"):
            refused(errors.TOKEN_UNKNOWN, lambda name=name: redeem(store, name))
        redeem(store, "south")
        store.members.admit(caller(store, "west"))

    def test_a_revoked_silo_is_not_suspended(self, store: Store) -> None:
        join(store, "north")
        store.members.revoke(Role.SILO, "north", NOW, ADMIN)
        refused(
            errors.SILO_REVOKED,
            lambda: store.members.suspend("north", LATER, ADMIN, drop_ballots=False),
        )
        assert store.silos.get("north").status is MemberStatus.REVOKED

    def test_a_spent_token_gives_nothing_once_its_certificate_was_replaced(
        self, store: Store
    ) -> None:
        join(store, "north")
        supersede(store, caller(store, "north"))
        refused(errors.TOKEN_USED, lambda: redeem(store, "north"))

    def test_two_admins_who_invite_each_other_anew_wait_in_no_circle(
        self, store: Store, url: str
    ) -> None:
        join(store, "ada", "zoe", role=Role.ADMIN)
        ada, zoe = (caller(store, name, Role.ADMIN) for name in ("ada", "zoe"))
        other = Store(url)

        def register(opened: Store, by: Caller, name: str) -> None:
            again = token(name, 2, role=Role.ADMIN)
            refused(
                errors.ADMIN_EXISTS,
                lambda: opened.members.register(again, NOW, by, replace_token=True),
            )

        with ThreadPoolExecutor(2) as threads:
            for _ in range(10):
                deeds = [
                    threads.submit(register, store, ada, "zoe"),
                    threads.submit(register, other, zoe, "ada"),
                ]
                for deed in deeds:
                    deed.result(PATIENCE)
        other.close()
