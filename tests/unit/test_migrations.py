"""An older, populated database becomes today's: nothing is lost, and the store works on with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from postgres import PostgresServer
from sqlalchemy import text
from store_scenes import (
    ADMIN,
    HOUR,
    LATER,
    NOW,
    Press,
    accept,
    ballot,
    caller,
    consensus,
    definition,
    invite,
    open_task,
    redeem,
    refused,
    running,
    stored,
)

from coordinator.consensus import Agreement
from coordinator.consensus.party_noise import PartyEntry, PartyRelease
from coordinator.round_engine import ClosedBy
from coordinator.store import Store
from coordinator.store.engine import migrate, open_engine
from coordinator.store.records import MemberStatus, TaskAgreement
from wire import errors
from wire.ballot import digest
from wire.errors import ConfigurationError
from wire.privacy.declaration import Declaration
from wire.task.definition import TaskStatus

pytestmark = pytest.mark.slow

SET = "a" * 64
EXPIRY = NOW + 24 * HOUR


def micro(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'coordinator.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    fresh = server.fresh_url()
    yield fresh
    server.drop(fresh)


SEPSIS = definition().model_copy(update={"public_set": SET, "rows": 8})


def first_release() -> dict[str, list[dict[str, Any]]]:
    """Rows of a federation as the first release stored them, in the middle of its second round."""
    no_lease = {"lease_instance": None, "lease_until": None, "last_seen_at": None}
    nothing = {"certificate_fingerprint": None, "certificate_expires_at": None}
    common = {"registered_at": micro(NOW), "activity": 0, "agent_version": "0.1.0"}

    def joined(name: str, status: str) -> dict[str, Any]:
        certificate = {
            "certificate_fingerprint": f"print {name}",
            "certificate_expires_at": micro(EXPIRY),
        }
        return {"name": name, "status": status, **common, **no_lease, **certificate}

    def join_token(name: str, redeemed: bool) -> dict[str, Any]:
        return {
            "id": f"{name}-1",
            "silo": name,
            "secret_hash": f"hash-{name}-1",
            "expires_at": micro(NOW + HOUR),
            "redeemed_by": f"key-{name}-1" if redeemed else None,
            "certificate_pem": f"certificate {name}" if redeemed else None,
        }

    opened = {"task": "sepsis", "opened_at": micro(NOW), "closes_at": micro(NOW + HOUR)}
    return {
        "silos": [
            joined("north", "active")
            | {"lease_instance": "one", "lease_until": micro(LATER), "last_seen_at": micro(NOW)},
            joined("south", "active"),
            joined("gone", "revoked"),
            {"name": "west", "status": "invited", **common, **no_lease, **nothing},
        ],
        "join_tokens": [
            join_token("north", True),
            join_token("south", True),
            join_token("gone", True),
            join_token("west", False),
        ],
        "public_sets": [
            {
                "name": "wards",
                "version": 1,
                "digest": SET,
                "rows": 8,
                "size_bytes": 100,
                "schema": json.dumps({"kind": "table", "columns": []}),
                "added_at": micro(NOW),
            }
        ],
        "tasks": [
            {
                "name": "sepsis",
                "digest": SEPSIS.digest,
                "definition": SEPSIS.canonical(),
                "status": "running",
                "reason": "",
                "revision": 2,
                "created_at": micro(NOW),
            }
        ],
        "rounds": [
            opened
            | {
                "number": 1,
                "expected": json.dumps(["north", "south"]),
                "quorum_at": micro(LATER),
                "extensions": 1,
                "closing": "everyone voted",
                "closed_at": micro(LATER),
                "ballots": 2,
                "consensus": b"\x0f\x00",
                "consensus_digest": digest(b"\x0f\x00"),
                "consensus_bytes": 2,
                "changed_rows": 8,
                "abstained_rows": 1,
            },
            opened
            | {
                "number": 2,
                "expected": json.dumps(["north", "south"]),
                "quorum_at": None,
                "extensions": 0,
                "closing": None,
                "closed_at": None,
                "ballots": None,
                "consensus": None,
                "consensus_digest": None,
                "consensus_bytes": None,
                "changed_rows": None,
                "abstained_rows": None,
            },
        ],
        "ballots": [
            {
                "task": "sepsis",
                "round": number,
                "silo": silo,
                "digest": digest(payload),
                "payload": payload,
                "accepted_at": micro(LATER),
            }
            for number, silo, payload in (
                (1, "north", b"\x00\xff"),
                (1, "south", b"\x01\x80"),
                (2, "north", b"\x02\x00"),
            )
        ],
    }


@pytest.fixture
def old(url: str) -> str:
    """A database of the first release, filled by plain SQL."""
    engine = open_engine(url)
    migrate(engine, "0001")
    with engine.begin() as tx:
        for table, rows in first_release().items():
            for row in rows:
                columns = ", ".join(f'"{name}"' for name in row)
                values = ", ".join(f":{name}" for name in row)
                tx.execute(text(f"INSERT INTO {table} ({columns}) VALUES ({values})"), row)
        tx.execute(text("UPDATE revisions SET value = 2"))
    engine.dispose()
    return url


@pytest.fixture
def upgraded(old: str) -> Iterator[Store]:
    store = Store(old)
    yield store
    store.close()


def test_silos_keep_their_standing_their_lease_and_their_certificates(upgraded: Store) -> None:
    found = {silo.name: silo for silo in upgraded.silos.all()}
    assert {name: silo.status for name, silo in found.items()} == {
        "gone": MemberStatus.REVOKED,
        "north": MemberStatus.ACTIVE,
        "south": MemberStatus.ACTIVE,
        "west": MemberStatus.INVITED,
    }
    assert found["north"].registered_at == NOW
    assert (found["north"].lease_instance, found["north"].lease_until) == ("one", LATER)
    assert found["north"].certificate_expires_at == EXPIRY
    assert found["west"].certificate_expires_at is None
    upgraded.members.admit(caller(upgraded, "north", fingerprint="print north"))


def test_a_renewal_follows_the_certificate_that_was_carried_over(upgraded: Store) -> None:
    renewed = upgraded.members.renew(caller(upgraded, "north"), "next key", LATER, Press().issue)
    upgraded.members.admit(
        caller(upgraded, "north", fingerprint=renewed.replace("certificate", "print"))
    )
    refused(
        errors.CERTIFICATE_SUPERSEDED,
        lambda: upgraded.members.admit(caller(upgraded, "north", fingerprint="print north")),
    )


def test_a_silo_revoked_then_does_not_come_back_by_being_registered_anew(upgraded: Store) -> None:
    refused(
        errors.SILO_REVOKED,
        lambda: upgraded.members.admit(caller(upgraded, "gone", fingerprint="print gone")),
    )
    invite(upgraded, "gone", 2)
    refused(
        errors.CERTIFICATE_SUPERSEDED,
        lambda: upgraded.members.admit(caller(upgraded, "gone", fingerprint="print gone")),
    )


def test_tokens_work_as_before(upgraded: Store) -> None:
    # A join that was cut off before the upgrade is repeated after it.
    assert redeem(upgraded, "north") == "print north"
    refused(errors.TOKEN_USED, lambda: redeem(upgraded, "south", key="thief"))
    redeem(upgraded, "west")
    assert upgraded.silos.get("west").status is MemberStatus.ACTIVE


def test_tasks_rounds_and_consensus_are_as_they_were(upgraded: Store) -> None:
    task = upgraded.tasks.get("sepsis")
    assert (task.definition, task.digest, task.revision) == (SEPSIS, SEPSIS.digest, 2)
    assert task.status is TaskStatus.RUNNING
    current = running(task)
    assert current.number == 2
    assert current.voted == {"north"}
    closed, payload = upgraded.tasks.consensus("sepsis")
    assert (closed.number, payload, closed.voted) == (1, b"\x0f\x00", ("north", "south"))
    assert (closed.closed_by, closed.closed_at) == (ClosedBy.EVERYONE, LATER)
    assert closed.agreement == {}
    assert upgraded.public_sets.find("wards@1").schema == {"kind": "table", "columns": []}


def test_old_ballots_are_kept_and_say_that_nobody_signed_for_them(upgraded: Store) -> None:
    assert list(stored(upgraded).items()) == [
        ("north", b"\x00\xff"),
        ("south", b"\x01\x80"),
    ]
    held = accept(upgraded, ballot("north", b"\x02\x00", 2), b"\x02\x00")
    assert (held.already_held, held.accepted_at) == (True, LATER)
    assert (held.signer, held.signature) == ("", b"")
    assert held.declaration == Declaration()


def test_old_consensuses_are_not_in_the_privacy_ledger_and_new_ones_can_be(upgraded: Store) -> None:
    assert upgraded.party_ledger.page() == []
    current = running(upgraded.tasks.get("sepsis"))
    upgraded.tasks.begin_close(current, ClosedBy.DEADLINE)
    release = PartyRelease(sensitivity=2, gamma_micros=10**9, rows=8)
    upgraded.tasks.publish(current, replace(consensus(), release=release), LATER)
    assert upgraded.party_ledger.page() == [PartyEntry("sepsis", 2, LATER, release)]


def test_releases_from_before_draws_were_counted_are_one_draw_each(url: str) -> None:
    store, release = Store(url), PartyRelease(sensitivity=2, gamma_micros=10**9, rows=8)
    current = open_task(store, "north", "south")
    accept(store, ballot("north"), b"\x01\x02")
    store.tasks.begin_close(current, ClosedBy.DEADLINE)
    store.tasks.publish(current, replace(consensus(), release=release), LATER)
    store.close()
    engine = open_engine(url)
    with engine.begin() as tx:
        tx.execute(text("ALTER TABLE party_releases DROP COLUMN draws"))
        tx.execute(text("ALTER TABLE ballots DROP COLUMN consensuses_seen"))
        tx.execute(text("UPDATE alembic_version SET version_num = '0004'"))
    engine.dispose()
    store = Store(url)
    assert store.party_ledger.page() == [PartyEntry("sepsis", 1, LATER, release)]
    assert store.party_ledger.draws() == {"sepsis": 1}
    assert store.ballots.held("sepsis", 1, "north").consensuses_seen == ()
    store.close()


def test_the_open_round_goes_on_to_the_end(upgraded: Store) -> None:
    current = running(upgraded.tasks.get("sepsis"))
    accept(upgraded, ballot("south", b"\x03\x00", 2), b"\x03\x00")
    assert running(upgraded.tasks.get("sepsis")).quorum_at == LATER
    upgraded.tasks.begin_close(current, ClosedBy.EVERYONE)
    after = upgraded.tasks.publish(current, consensus(), LATER)
    assert running(after).number == 3
    assert after.revision == 3
    upgraded.tasks.pause("sepsis", "Paused.", LATER, ADMIN)
    assert [link.entry["act"] for link in upgraded.audit.page()] == [
        "ballot_accepted",
        "consensus_published",
        "task_paused",
    ]


def test_old_rounds_compare_nobody_and_new_ones_can(upgraded: Store) -> None:
    assert upgraded.tasks.agreements(NOW) == []
    current = running(upgraded.tasks.get("sepsis"))
    upgraded.tasks.begin_close(current, ClosedBy.DEADLINE)
    agreement = {"north": Agreement(8, 5)}
    upgraded.tasks.publish(current, replace(consensus(), agreement=agreement), LATER)
    assert upgraded.tasks.agreements(NOW) == [TaskAgreement("sepsis", agreement)]


def test_upgrading_again_changes_nothing(upgraded: Store, old: str) -> None:
    before = upgraded.tasks.all(), upgraded.silos.all(), upgraded.public_sets.all()
    again = Store(old)
    assert (again.tasks.all(), again.silos.all(), again.public_sets.all()) == before
    again.close()


def test_a_database_of_a_newer_release_is_left_alone_and_says_so(url: str) -> None:
    Store(url).close()
    engine = open_engine(url)
    with engine.begin() as tx:
        tx.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ConfigurationError, match="newer version"):
        Store(url)
    with engine.begin() as tx:
        assert tx.execute(text("SELECT version_num FROM alembic_version")).scalar() == "9999"
    engine.dispose()
