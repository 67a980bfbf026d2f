"""Certificates that signed receipts; kept for good, so that an old receipt can be verified."""

from __future__ import annotations

from sqlalchemy import Engine, select

from coordinator.store.actors import COORDINATOR
from coordinator.store.engine import insert_new, snapshot
from coordinator.store.schema import signers
from coordinator.store.standing import acting
from wire.errors import SIGNER_UNKNOWN, Refusal


class SignerStore:
    """Each method is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def keep(self, fingerprint: str, pem: str) -> None:
        """Remembers a signer; knowing it already is no error."""
        with acting(self._engine, COORDINATOR) as tx:
            insert_new(tx, signers, fingerprint=fingerprint, pem=pem)

    def get(self, fingerprint: str) -> str:
        """A signer's certificate in PEM, or SIGNER_UNKNOWN."""
        with snapshot(self._engine) as tx:
            query = select(signers.c.pem).where(signers.c.fingerprint == fingerprint)
            pem: str | None = tx.execute(query).scalar()
        if pem is None:
            raise Refusal(SIGNER_UNKNOWN, fingerprint=fingerprint)
        return pem
