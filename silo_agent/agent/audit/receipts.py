"""Receipts at the silo: verified on arrival, recorded with what is needed to verify them again years later."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from google.protobuf.timestamp_pb2 import Timestamp

from wire.consilium.v1 import ballot_pb2
from wire.identity.certificates import certificate_in, certificates_in
from wire.identity.identity import fingerprint_of
from wire.receipts import Statement, verified
from wire.runtime.files import write_atomically

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class RecordedReceipt:
    """A receipt as recorded: its statement, the signer, and the authority that issued the signer's certificate."""

    statement: Statement
    signer: str
    """Fingerprint of the certificate whose key signed."""
    signature: bytes
    authority: str
    """Fingerprint of the authority that the signature was verified with on arrival; empty if it did not verify."""

    def entry(self) -> dict[str, str | int]:
        """As JSON; `accepted_at` to the microsecond, which is what was signed."""
        statement = self.statement
        return {
            "consortium": statement.consortium,
            "task": statement.task,
            "round": statement.round,
            "silo": statement.silo,
            "digest": statement.digest,
            "accepted_at": statement.accepted_at.isoformat(timespec="microseconds"),
            "signer": self.signer,
            "signature": self.signature.hex(),
            "authority": self.authority,
        }

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> RecordedReceipt:
        """The inverse of `entry`; ValueError, KeyError or TypeError for anything else."""
        return cls(
            statement=Statement(
                consortium=str(entry["consortium"]),
                task=str(entry["task"]),
                round=int(entry["round"]),
                silo=str(entry["silo"]),
                digest=str(entry["digest"]),
                accepted_at=datetime.fromisoformat(entry["accepted_at"]).astimezone(UTC),
            ),
            signer=str(entry["signer"]),
            signature=bytes.fromhex(entry["signature"]),
            authority=str(entry["authority"]),
        )

    @classmethod
    def received(
        cls, receipt: ballot_pb2.Receipt, consortium: str, authority: str = ""
    ) -> RecordedReceipt:
        """A receipt as the coordinator sent it."""
        statement = Statement(
            consortium=consortium,
            task=receipt.task,
            round=receipt.round,
            silo=receipt.silo,
            digest=receipt.digest,
            accepted_at=_moment(receipt.accepted_at),
        )
        return cls(statement, receipt.signer, receipt.signature, authority)


def _moment(stamp: Timestamp) -> datetime:
    """The time in a receipt; 1970, when no signer's certificate was valid, for an invalid one."""
    try:
        return stamp.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        return datetime(1970, 1, 1, tzinfo=UTC)


class SignerFolder:
    """Certificates that signed receipts, each with the authorities it was verified with.

    `<fingerprint>.pem` holds the signer's certificate, then the authorities: a receipt must verify also after
    the consortium has replaced its authority.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def certificates(self, fingerprint: str) -> list[x509.Certificate]:
        """The signer, then its authorities; empty if the file is missing or damaged."""
        path = self._path(fingerprint)
        if path is None or not path.exists():
            return []
        try:
            return certificates_in(path.read_bytes())
        except ValueError:
            return []

    def keep(self, fingerprint: str, signer_pem: bytes, authorities_pem: bytes) -> None:
        """Stores a signer that was verified."""
        path = self._path(fingerprint)
        if path is not None and not path.exists():
            signer = certificate_in(signer_pem).public_bytes(Encoding.PEM)
            write_atomically(path, signer + authorities_pem)

    def _path(self, fingerprint: str) -> Path | None:
        # The name comes from the coordinator: it must not lead out of the folder.
        return self._folder / f"{fingerprint}.pem" if _FINGERPRINT.fullmatch(fingerprint) else None


def vouching_authority(receipt: RecordedReceipt, signer_pem: bytes, authorities_pem: bytes) -> str:
    """Fingerprint of the authority with which the receipt verifies; empty if there is none."""
    try:
        authorities = certificates_in(authorities_pem)
    except ValueError:
        return ""
    for authority in authorities:
        pem = authority.public_bytes(Encoding.PEM)
        if verified(receipt.statement, receipt.signature, receipt.signer, signer_pem, pem):
            return fingerprint_of(authority)
    return ""


def receipt_flaw(receipt: RecordedReceipt, signers: SignerFolder) -> str:
    """Why a recorded receipt does not verify, as a clause of a sentence; empty if it does.

    Only the authority recorded with it counts: one added to the folder afterwards proves nothing.
    """
    known = signers.certificates(receipt.signer)
    if not known:
        return f"the certificate of its signer {receipt.signer or '(none named)'} is not here"
    signer, *authorities = known
    trusted = [one for one in authorities if receipt.authority in ("", fingerprint_of(one))]
    bundle = b"".join(one.public_bytes(Encoding.PEM) for one in trusted)
    if not bundle or not vouching_authority(receipt, signer.public_bytes(Encoding.PEM), bundle):
        return "its signature does not verify"
    return ""
