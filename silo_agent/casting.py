"""Casting: a ballot is recorded, then leaves; what answers it is checked and recorded too."""

from __future__ import annotations

from dataclasses import replace

import structlog
from cryptography.hazmat.primitives.serialization import Encoding

from silo_agent.audit import AuditLog
from silo_agent.coordinator_link import CoordinatorLink
from silo_agent.receipts import KeptReceipt, SignerFolder, voucher
from silo_agent.traffic import Direction, Kind
from wire.consilium.v1 import ballot_pb2
from wire.crash_points import crash_point
from wire.errors import (
    BALLOT_CONFLICT,
    BALLOT_LABEL_SPACE,
    NOT_A_PARTICIPANT,
    PRIVACY_TOO_WEAK,
    RECEIPT_UNKNOWN,
    ROUND_CLOSED,
    ConsiliumError,
    Refusal,
)

log = structlog.get_logger()

ACCEPTED = "accepted"
# None of these gets better by trying again; the next round may. A paused task is another matter: its round
# goes on when the task does.
_FINAL = (
    ROUND_CLOSED,
    NOT_A_PARTICIPANT,
    BALLOT_CONFLICT,
    BALLOT_LABEL_SPACE,
    PRIVACY_TOO_WEAK,
)
OUTCOMES = (ACCEPTED, *(fault.code.lower() for fault in _FINAL))
"""All that can become of a ballot."""


class BallotBox:
    """The one way out. Each cast, also a repeated one, is an entry of its own in the audit record."""

    def __init__(self, link: CoordinatorLink, audit: AuditLog) -> None:
        self._link = link
        self._audit = audit
        self._signers = SignerFolder(audit.folder / "signers")

    async def cast(self, header: ballot_pb2.BallotHeader, ballot: bytes) -> str:
        """Casts a ballot; `ACCEPTED`, or the code of the refusal that ended its way."""
        task, number, digest = header.task, header.round, header.digest
        crash_point("ballot-handed-in")
        self._audit.record(Direction.OUT, Kind.BALLOT, task, number, len(ballot), digest)
        crash_point("ballot-recorded")
        try:
            receipt = await self._link.cast(header, ballot)
        except Refusal as refusal:
            if not refusal.is_a(*_FINAL):
                raise
            self._audit.record(Direction.IN, Kind.REFUSAL, task, number, 0, digest)
            log.warning("ballot_refused", task=task, round=number, sentence=refusal.sentence)
            return refusal.code.lower()
        crash_point("ballot-answered")
        await self._keep(receipt, task, number, digest)
        crash_point("receipt-recorded")
        log.info("ballot_cast", task=task, round=number, bytes=len(ballot), digest=digest)
        return ACCEPTED

    async def held(self, task: str, number: int) -> bool:
        """True if the coordinator holds our ballot of a round."""
        try:
            await self._link.receipt(task, number)
        except Refusal as refusal:
            if not refusal.is_a(RECEIPT_UNKNOWN):
                raise
            return False
        return True

    async def claim(self, task: str, open_round: int) -> set[int]:
        """Asks for receipts whose way here was cut off; the rounds whose ballots are in after all.

        A ballot that never arrived counts as refused, unless its round is still open: it is cast again then.
        """
        claimed = set()
        for number, digest in self._audit.unanswered(task).items():
            try:
                receipt = await self._link.receipt(task, number)
            except Refusal as refusal:
                if not refusal.is_a(RECEIPT_UNKNOWN):
                    raise
                if number != open_round:
                    self._audit.record(Direction.IN, Kind.REFUSAL, task, number, 0, digest)
                continue
            await self._keep(receipt, task, number, digest)
            claimed.add(number)
            log.info("receipt_claimed", task=task, round=number, digest=digest)
        return claimed

    async def _keep(self, receipt: ballot_pb2.Receipt, task: str, number: int, digest: str) -> None:
        """Records a receipt, proven or not: one that proves nothing is evidence too."""
        identity = self._link.identity
        kept = KeptReceipt.received(receipt, identity.consortium)
        stated = (receipt.task, receipt.round, receipt.silo, receipt.digest)
        if stated != (task, number, identity.name, digest):
            log.error("receipt_for_another_ballot", task=task, round=number, digest=digest)
        else:
            kept = replace(kept, authority=await self._voucher(kept))
            if not kept.authority:
                log.error("receipt_unproven", task=task, round=number, signer=kept.signer)
        self._audit.record(
            Direction.IN, Kind.RECEIPT, task, number, receipt.ByteSize(), digest, kept
        )

    async def _voucher(self, kept: KeptReceipt) -> str:
        """Which authority proves the receipt; a signer that is not known yet is asked for."""
        held = self._signers.certificates(kept.signer)
        if held:
            signer, *authorities = (one.public_bytes(Encoding.PEM) for one in held)
            return voucher(kept, signer, b"".join(authorities))
        try:
            pem = await self._link.signer(kept.signer)
        except ConsiliumError as error:
            log.warning("signer_not_fetched", signer=kept.signer, sentence=error.sentence)
            return ""
        trusted = self._link.identity.authorities_pem
        authority = voucher(kept, pem, trusted)
        if authority:
            self._signers.keep(kept.signer, pem, trusted)
        return authority
