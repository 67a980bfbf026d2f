"""Issued certificates, and which of them are still good; within the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import (
    ColumnElement,
    Connection,
    Label,
    Select,
    Table,
    bindparam,
    func,
    select,
    update,
)

from coordinator.store.engine import insert_new
from coordinator.store.records import IssuedCertificate
from coordinator.store.schema import certificates
from wire.errors import REQUEST_INVALID, Refusal
from wire.identity.identity import Role


def certificate_of_key(tx: Connection, key_hash: str, role: Role, name: str) -> str | None:
    """The member's good certificate for a key, in PEM."""
    mine = _of(role, name) & ~certificates.c.withdrawn
    query = select(certificates.c.pem).where(mine, certificates.c.key_hash == key_hash)
    pem: str | None = tx.execute(query).scalar()
    return pem


def insert_certificate(
    tx: Connection, role: Role, name: str, key_hash: str, certificate: IssuedCertificate
) -> None:
    """Adds a certificate behind those of its holder, who is locked; a key is certified only once."""
    latest = tx.execute(select(func.max(certificates.c.issued)).where(_of(role, name))).scalar()
    fresh = insert_new(
        tx,
        certificates,
        role=role,
        name=name,
        key_hash=key_hash,
        issued=(latest or 0) + 1,
        withdrawn=False,
        **vars(certificate),
    )
    if not fresh:
        raise Refusal(REQUEST_INVALID, why="its key has been certified before")


def withdraw_all(tx: Connection, role: Role, name: str) -> None:
    """None of the holder's certificates is good any longer."""
    tx.execute(update(certificates).where(_of(role, name)).values(withdrawn=True))


def good_certificates(tx: Connection, role: Role, name: str) -> list[str]:
    """Fingerprints of the holder's certificates that are good, oldest first."""
    query = select(certificates.c.fingerprint).where(_of(role, name), ~certificates.c.withdrawn)
    return list(tx.execute(query.order_by(certificates.c.issued)).scalars())


def status_query(role: Role, table: Table) -> Select[tuple[str, str | None]]:
    """A query: the status of the member `:name` in `table`, a row for each of its good certificates, oldest first."""
    theirs = (certificates.c.role == role) & (certificates.c.name == table.c.name)
    held = table.outerjoin(certificates, theirs & ~certificates.c.withdrawn)
    query = select(table.c.status, certificates.c.fingerprint).select_from(held)
    return query.where(table.c.name == bindparam("name")).order_by(certificates.c.issued)


def withdraw(tx: Connection, fingerprints: Sequence[str]) -> None:
    """These are no longer good; their holder is locked."""
    if fingerprints:
        old = certificates.c.fingerprint.in_(fingerprints)
        tx.execute(update(certificates).where(old).values(withdrawn=True))


def newest_expiry(role: Role, table: Table) -> Label[object]:
    """A column: when the newest good certificate of each member in `table` expires."""
    mine = (certificates.c.role == role) & (certificates.c.name == table.c.name)
    query = select(func.max(certificates.c.expires_at)).where(mine, ~certificates.c.withdrawn)
    return query.scalar_subquery().label("certificate_expires_at")


def _of(role: Role, name: str) -> ColumnElement[bool]:
    return (certificates.c.role == role) & (certificates.c.name == name)
