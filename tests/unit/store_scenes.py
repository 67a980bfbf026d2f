"""Small scenes the store's tests begin with: members that joined, a task that runs, ballots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import count
from threading import Barrier
from typing import TypeVar

import pytest
from patience import PATIENCE

from coordinator.round_engine import Round
from coordinator.store import Store
from coordinator.store.actors import Caller, LocalActor
from coordinator.store.records import (
    BallotRecord,
    Consensus,
    IssuedCertificate,
    TaskRecord,
    TokenRecord,
)
from wire.ballot import digest
from wire.errors import Fault, Refusal
from wire.identity.identity import Identity, Role
from wire.task.definition import RoundPolicy, TaskDefinition

T = TypeVar("T")

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
LATER = NOW + timedelta(seconds=1)
HOUR = timedelta(hours=1)
LEASE = timedelta(seconds=30)
SET_DIGEST = "a" * 64
SCHEMA: dict[str, object] = {"kind": "table", "columns": [{"name": "âge", "nullable": True}]}
ADMIN = LocalActor("admin/chief")
_SERIAL = count(1)


def refused(fault: Fault, act: Callable[[], object], *words: str) -> None:
    """Asserts that `act` is refused for this reason, in a sentence with these words."""
    with pytest.raises(Refusal) as caught:
        act()
    assert caught.value.code == fault.code, caught.value.sentence
    for word in words:
        assert word in caught.value.sentence


def token(
    name: str, number: int = 1, expires_at: datetime = NOW + HOUR, role: Role = Role.SILO
) -> TokenRecord:
    return TokenRecord(f"{name}-{number}", role, name, f"hash-{name}-{number}", expires_at)


class Press:
    """Prints certificates and remembers for whom; no two look alike."""

    def __init__(self) -> None:
        self.printed: list[str] = []

    def issue(self, role: Role, name: str) -> IssuedCertificate:
        self.printed.append(name)
        mark = f"{role}-{name}-{next(_SERIAL)}"
        return IssuedCertificate(f"certificate {mark}", f"print {mark}", NOW + 30 * HOUR)


def invite(store: Store, name: str, number: int = 1, role: Role = Role.SILO) -> None:
    store.members.register(token(name, number, role=role), NOW, ADMIN, replace_token=False)


def redeem(
    store: Store, name: str, number: int = 1, key: str = "", press: Press | None = None
) -> str:
    """Spends a token; the fingerprint of the certificate it bought."""
    issue = (press or Press()).issue
    identity = (f"{name}-{number}", f"hash-{name}-{number}", key or f"key-{name}-{number}")
    _, _, pem = store.members.redeem(*identity, NOW, issue)
    return pem.replace("certificate", "print")


def join(store: Store, *names: str, role: Role = Role.SILO) -> None:
    for name in names:
        invite(store, name, role=role)
        redeem(store, name)


def caller(
    store: Store, name: str, role: Role = Role.SILO, fingerprint: str | None = None
) -> Caller:
    """A member with the certificate named, or with its newest good one."""
    if fingerprint is None:
        held = [
            one.fingerprint
            for one in store.outstanding.certificates(NOW)
            if (one.role, one.name) == (role, name)
        ]
        fingerprint = held[-1] if held else "none"
    return Caller(Identity("hospitals", role, name), fingerprint)


def publish_set(store: Store) -> None:
    store.public_sets.add("wards", SET_DIGEST, 8, 100, SCHEMA, NOW, ADMIN)


def definition(name: str = "sepsis", **policy: object) -> TaskDefinition:
    rounds = RoundPolicy.model_validate({"quorum": 2, "deadline": 60, "max_rounds": 3, **policy})
    return TaskDefinition(name=name, public_set="wards", labels=("no", "yes"), rounds=rounds)


def open_task(store: Store, *silos: str, name: str = "sepsis") -> Round:
    """A running task of these silos: its first round."""
    join(store, *silos)
    publish_set(store)
    store.tasks.create(definition(name), NOW, ADMIN)
    return running(store.tasks.start(name, NOW, ADMIN))


def running(task: TaskRecord) -> Round:
    assert task.open_round is not None
    return task.open_round


def ballot(
    silo: str,
    payload: bytes = b"\x01\x02",
    number: int = 1,
    at: datetime = LATER,
    task: str = "sepsis",
) -> BallotRecord:
    return BallotRecord(
        task=task,
        round=number,
        silo=silo,
        digest=digest(payload),
        accepted_at=at,
        signer="f" * 64,
        signature=b"signed " + payload,
        already_held=False,
    )


def vote(
    store: Store,
    silo: str,
    payload: bytes = b"\x01\x02",
    number: int = 1,
    task: str = "sepsis",
) -> bool:
    """Casts a ballot; True if it was held already."""
    return accept(store, ballot(silo, payload, number, task=task), payload).already_held


def accept(store: Store, cast: BallotRecord, payload: bytes) -> BallotRecord:
    """Stores a ballot in the name of its silo."""
    return store.ballots.accept(caller(store, cast.silo), cast, payload)


def stored(store: Store, round_number: int = 1, task: str = "sepsis") -> dict[str, bytes]:
    """The ballots of a round by silo, in the order in which they are counted."""
    silos = store.ballots.declarations(task, round_number)
    return {silo: store.ballots.payload(task, round_number, silo) for silo in silos}


def consensus(payload: bytes = b"\x0f\x00", ballots: int = 2) -> Consensus:
    return Consensus(payload, digest(payload), changed_rows=8, abstained_rows=1, ballots=ballots)


def acts(store: Store) -> list[str]:
    """Every entry of the audit chain in a few words, oldest first."""
    return [
        f"{link.entry['act']} {link.entry['subject']} by {link.entry['actor']}"
        for link in store.audit.page()
    ]


def at_once(url: str, deeds: Sequence[Callable[[Store], T]]) -> list[T | str]:
    """What each deed gave, or the code of its refusal; each has its own store, as a replica has."""
    together = Barrier(len(deeds))
    stores = [Store(url) for _ in deeds]

    def do(store: Store, deed: Callable[[Store], T]) -> T | str:
        together.wait(PATIENCE)
        try:
            return deed(store)
        except Refusal as refusal:
            return refusal.code

    try:
        with ThreadPoolExecutor(len(deeds)) as threads:
            return list(threads.map(do, stores, deeds))
    finally:
        for store in stores:
            store.close()
