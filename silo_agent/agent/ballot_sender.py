"""Sends ballots: each is recorded before it leaves, and its receipt is verified and recorded when it comes."""

from __future__ import annotations

from dataclasses import replace

import structlog
from cryptography.hazmat.primitives.serialization import Encoding

from silo_agent.agent.audit.entries import Direction, Kind
from silo_agent.agent.audit.receipts import RecordedReceipt, SignerFolder, vouching_authority
from silo_agent.agent.audit.recorder import AuditLog
from silo_agent.agent.ballot_outcome import BallotOutcome, final_outcome
from silo_agent.agent.coordinator_client import CoordinatorClient
from wire.consilium.v1 import ballot_pb2
from wire.errors import RECEIPT_UNKNOWN, ConsiliumError, Refusal
from wire.runtime.crash_points import crash_point

log = structlog.get_logger()


class BallotSender:
    """The only code that sends ballots. Every attempt, also a repeated one, has its own audit entry."""

    def __init__(self, coordinator: CoordinatorClient, audit: AuditLog) -> None:
        self._coordinator = coordinator
        self._audit = audit
        self._signers = SignerFolder(audit.folder / "signers")

    async def cast(self, header: ballot_pb2.BallotHeader, ballot: bytes) -> BallotOutcome:
        """Sends a ballot and returns its outcome; raises a failure after which sending again may succeed."""
        task, round_number, digest = header.task, header.round, header.digest
        crash_point("ballot-handed-in")
        self._audit.record(Direction.OUT, Kind.BALLOT, task, round_number, len(ballot), digest)
        crash_point("ballot-recorded")
        try:
            receipt = await self._coordinator.cast(header, ballot)
        except Refusal as refusal:
            outcome = final_outcome(refusal)
            if outcome is None:
                raise
            self._audit.record(Direction.IN, Kind.REFUSAL, task, round_number, 0, digest)
            log.warning("ballot_refused", task=task, round=round_number, sentence=refusal.sentence)
            return outcome
        crash_point("ballot-answered")
        await self._record_receipt(receipt, task, round_number, digest)
        crash_point("receipt-recorded")
        log.info("ballot_cast", task=task, round=round_number, bytes=len(ballot), digest=digest)
        return BallotOutcome.ACCEPTED

    async def is_stored(self, task: str, round_number: int) -> bool:
        """True if the coordinator has stored this silo's ballot of a round."""
        try:
            await self._coordinator.receipt(task, round_number)
        except Refusal as refusal:
            if not refusal.is_a(RECEIPT_UNKNOWN):
                raise
            return False
        return True

    async def recover_receipts(self, task: str, open_round: int) -> set[int]:
        """Fetches receipts that were lost with a connection; returns the rounds whose ballot was accepted.

        A ballot that never arrived counts as refused, unless its round is still open: it is sent again then.
        """
        recovered = set()
        for round_number, digest in self._audit.unanswered(task).items():
            try:
                receipt = await self._coordinator.receipt(task, round_number)
            except Refusal as refusal:
                if not refusal.is_a(RECEIPT_UNKNOWN):
                    raise
                if round_number != open_round:
                    self._audit.record(Direction.IN, Kind.REFUSAL, task, round_number, 0, digest)
                continue
            await self._record_receipt(receipt, task, round_number, digest)
            recovered.add(round_number)
            log.info("receipt_recovered", task=task, round=round_number, digest=digest)
        return recovered

    async def _record_receipt(
        self, receipt: ballot_pb2.Receipt, task: str, round_number: int, digest: str
    ) -> None:
        """Records a receipt, also one that does not verify: it is evidence too."""
        identity = self._coordinator.identity
        recorded = RecordedReceipt.received(receipt, identity.consortium)
        stated = (receipt.task, receipt.round, receipt.silo, receipt.digest)
        if stated != (task, round_number, identity.name, digest):
            log.error("receipt_for_another_ballot", task=task, round=round_number, digest=digest)
        else:
            recorded = replace(recorded, authority=await self._authority_of(recorded))
            if not recorded.authority:
                log.error("receipt_unproven", task=task, round=round_number, signer=recorded.signer)
        self._audit.record(
            Direction.IN, Kind.RECEIPT, task, round_number, receipt.ByteSize(), digest, recorded
        )

    async def _authority_of(self, receipt: RecordedReceipt) -> str:
        """Fingerprint of the authority that proves the receipt, or empty; fetches a signer not known yet."""
        known = self._signers.certificates(receipt.signer)
        if known:
            signer, *authorities = (one.public_bytes(Encoding.PEM) for one in known)
            return vouching_authority(receipt, signer, b"".join(authorities))
        try:
            pem = await self._coordinator.signer(receipt.signer)
        except ConsiliumError as error:
            log.warning("signer_not_fetched", signer=receipt.signer, sentence=error.sentence)
            return ""
        trusted = self._coordinator.identity.authorities_pem
        authority = vouching_authority(receipt, pem, trusted)
        if authority:
            self._signers.keep(receipt.signer, pem, trusted)
        return authority
