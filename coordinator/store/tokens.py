"""Join tokens, within the caller's transaction; a token changes only under its member's lock."""

from __future__ import annotations

import hmac

from sqlalchemy import Connection, RowMapping, delete, select

from coordinator.store.audit import Act
from coordinator.store.certificates import certificate_of_key
from coordinator.store.schema import audit, tokens
from coordinator.store.standing import locked_status
from wire.errors import TOKEN_UNKNOWN, TOKEN_USED, Refusal
from wire.identity.identity import Role


def known_token(tx: Connection, token_id: str, secret_hash: str) -> RowMapping:
    """The token of this id, for whoever knows its secret; TOKEN_UNKNOWN for everybody else."""
    row = tx.execute(select(tokens).where(tokens.c.id == token_id)).mappings().first()
    if row is None or not hmac.compare_digest(row["secret_hash"], secret_hash):
        raise Refusal(TOKEN_UNKNOWN)
    return row


def certificate_of_spent(tx: Connection, token: RowMapping, key_hash: str) -> str:
    """The certificate a spent token bought, for the key that spent it; TOKEN_USED for others and once it is void."""
    role, name = Role(token["role"]), str(token["name"])
    held = None
    if token["redeemed_by"] == key_hash:
        held = certificate_of_key(tx, key_hash, role, name)
    if held is None:
        raise Refusal(TOKEN_USED, name=name)
    return held


def void_tokens(tx: Connection, role: Role, name: str) -> None:
    """No token of this member counts any longer."""
    tx.execute(delete(tokens).where((tokens.c.role == role) & (tokens.c.name == name)))


def void_tokens_made_by(tx: Connection, admin: str) -> int:
    """No token that this admin made and nobody redeemed counts any longer; how many there were. Admins are locked."""
    made = select(audit.c.details).where(
        audit.c.act == Act.MEMBER_REGISTERED, audit.c.actor == f"{Role.ADMIN}/{admin}"
    )
    ids = [details.get("token", "") for details in tx.execute(made).scalars()]
    unspent = tokens.c.id.in_(ids) & tokens.c.redeemed_by.is_(None)
    invited = tx.execute(select(tokens.c.role, tokens.c.name).where(unspent)).all()
    for role, name in sorted(invited):
        locked_status(tx, Role(role), name)
    return tx.execute(delete(tokens).where(unspent)).rowcount
