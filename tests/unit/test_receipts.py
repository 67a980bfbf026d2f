"""Receipts: only the coordinator's own signature over exactly this statement proves anything."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.pki.authority import Authority, IssuedKey
from silo_agent.agent.audit.receipts import (
    RecordedReceipt,
    SignerFolder,
    receipt_flaw,
    vouching_authority,
)
from wire.consilium.v1 import ballot_pb2
from wire.identity.identity import fingerprint_of, read_certificate
from wire.receipts import Signer, Statement, verified

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
YEAR = timedelta(days=365)
STATEMENT = Statement("rhine-clinics", "tumour", 3, "north", "ab" * 32, NOW)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "ours", "rhine-clinics", NOW - YEAR)


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "theirs", "rhine-clinics", NOW - YEAR)


def server(authority: Authority, at: datetime = NOW - timedelta(days=30)) -> IssuedKey:
    return authority.issue_server(["localhost"], YEAR, at)


def signer_of(issued: IssuedKey) -> Signer:
    return Signer(issued.key_pem, issued.certificate_pem)


def received(signer: Signer, statement: Statement = STATEMENT) -> RecordedReceipt:
    message = ballot_pb2.Receipt(
        task=statement.task,
        round=statement.round,
        silo=statement.silo,
        digest=statement.digest,
        signer=signer.fingerprint,
        signature=signer.sign(statement),
    )
    message.accepted_at.FromDatetime(statement.accepted_at)
    return RecordedReceipt.received(message, statement.consortium)


class TestVerification:
    def test_the_signed_bytes_are_the_documented_ones(self) -> None:
        text = f"consilium/receipt/v1\nrhine-clinics\ntumour\n3\nnorth\n{'ab' * 32}\n1772366400123456\n"
        assert STATEMENT.encoded() == text.encode()

    def test_accepts_the_coordinators_signature(self, authority: Authority) -> None:
        signer = signer_of(server(authority))
        assert verified(
            STATEMENT,
            signer.sign(STATEMENT),
            signer.fingerprint,
            signer.certificate_pem,
            authority.certificate_pem,
        )

    @pytest.mark.parametrize(
        "change",
        [
            {"consortium": "elbe-clinics"},
            {"task": "tumours"},
            {"round": 4},
            {"silo": "south"},
            {"digest": "ac" * 32},
            {"accepted_at": NOW + timedelta(microseconds=1)},
        ],
    )
    def test_refuses_any_other_statement(
        self, authority: Authority, change: dict[str, object]
    ) -> None:
        signer = signer_of(server(authority))
        assert not verified(
            replace(STATEMENT, **change),  # type: ignore[arg-type]
            signer.sign(STATEMENT),
            signer.fingerprint,
            signer.certificate_pem,
            authority.certificate_pem,
        )

    def test_refuses_a_members_signature(self, authority: Authority) -> None:
        """A silo's or admin's certificate is the same authority's, and yet no receipt comes from it."""
        signer = signer_of(authority.issue_admin("mallory", YEAR, NOW))
        receipt = received(signer)
        assert vouching_authority(receipt, signer.certificate_pem, authority.certificate_pem) == ""

    def test_refuses_another_consortiums_coordinator(
        self, authority: Authority, stranger: Authority
    ) -> None:
        signer = signer_of(server(stranger))
        assert (
            vouching_authority(received(signer), signer.certificate_pem, authority.certificate_pem)
            == ""
        )

    def test_refuses_a_certificate_the_receipt_does_not_name(self, authority: Authority) -> None:
        issued, other = server(authority), server(authority)
        signer = signer_of(issued)
        assert not verified(
            STATEMENT,
            signer.sign(STATEMENT),
            signer.fingerprint,
            other.certificate_pem,
            authority.certificate_pem,
        )

    @pytest.mark.parametrize("days", [-2000, 2000])
    def test_refuses_a_time_the_certificate_does_not_cover(
        self, authority: Authority, days: int
    ) -> None:
        signer = signer_of(server(authority))
        statement = replace(STATEMENT, accepted_at=NOW + timedelta(days=days))
        receipt = received(signer, statement)
        assert vouching_authority(receipt, signer.certificate_pem, authority.certificate_pem) == ""

    @pytest.mark.parametrize("signature", [b"", b"\x30\x00", b"\xff" * 72])
    def test_refuses_what_is_no_signature(self, authority: Authority, signature: bytes) -> None:
        signer = signer_of(server(authority))
        receipt = replace(received(signer), signature=signature)
        assert vouching_authority(receipt, signer.certificate_pem, authority.certificate_pem) == ""

    @pytest.mark.parametrize("pem", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
    def test_refuses_what_is_no_certificate(self, authority: Authority, pem: bytes) -> None:
        receipt = received(signer_of(server(authority)))
        assert vouching_authority(receipt, pem, authority.certificate_pem) == ""
        assert vouching_authority(receipt, authority.certificate_pem, pem) == ""

    def test_anyone_can_verify_without_our_code(self, authority: Authority) -> None:
        """Plain ECDSA with SHA-256 over the documented bytes, nothing of ours in between."""
        issued = server(authority)
        signature = signer_of(issued).sign(STATEMENT)
        public = x509.load_pem_x509_certificate(issued.certificate_pem).public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)
        public.verify(signature, STATEMENT.encoded(), ec.ECDSA(hashes.SHA256()))


class TestRecordedReceipts:
    def test_come_back_from_their_entry_to_the_microsecond(self, authority: Authority) -> None:
        kept = replace(received(signer_of(server(authority))), authority="cd" * 32)
        assert RecordedReceipt.from_entry(kept.entry()) == kept
        assert kept.statement == STATEMENT

    def test_survive_a_time_that_is_none(self, authority: Authority) -> None:
        message = ballot_pb2.Receipt(task="tumour")
        message.accepted_at.seconds = 1 << 60
        kept = RecordedReceipt.received(message, "rhine-clinics")
        assert kept.statement.accepted_at.year == 1970

    def test_are_proven_long_after_the_consortium_has_changed_its_authority(
        self, authority: Authority, tmp_path: Path
    ) -> None:
        signer = signer_of(server(authority))
        kept = received(signer)
        vouching = vouching_authority(kept, signer.certificate_pem, authority.certificate_pem)
        assert vouching == authority.fingerprint
        folder = SignerFolder(tmp_path / "signers")
        folder.keep(kept.signer, signer.certificate_pem, authority.certificate_pem)
        assert receipt_flaw(replace(kept, authority=vouching), folder) == ""

    def test_are_not_proven_by_an_authority_slipped_in_later(
        self, authority: Authority, stranger: Authority, tmp_path: Path
    ) -> None:
        """Whoever swaps the kept certificates cannot swap the authority recorded in the chain."""
        signer = signer_of(server(stranger))
        folder = SignerFolder(tmp_path / "signers")
        folder.keep(signer.fingerprint, signer.certificate_pem, stranger.certificate_pem)
        forged = replace(received(signer), authority=authority.fingerprint)
        assert receipt_flaw(forged, folder) == "its signature does not verify"

    def test_without_their_signers_certificate_prove_nothing(
        self, authority: Authority, tmp_path: Path
    ) -> None:
        kept = received(signer_of(server(authority)))
        assert "is not here" in receipt_flaw(kept, SignerFolder(tmp_path / "signers"))


class TestSignerFolder:
    def test_holds_the_signer_and_the_authorities_it_was_verified_with(
        self, authority: Authority, tmp_path: Path
    ) -> None:
        issued = server(authority)
        fingerprint = read_certificate(issued.certificate_pem).fingerprint
        folder = SignerFolder(tmp_path / "signers")
        folder.keep(fingerprint, issued.certificate_pem, authority.certificate_pem)
        kept = [fingerprint_of(one) for one in folder.certificates(fingerprint)]
        assert kept == [fingerprint, authority.fingerprint]

    @pytest.mark.parametrize("name", ["", "../identity/key", "AB" * 32, "ab" * 32 + "/x"])
    def test_takes_no_name_that_leads_elsewhere(
        self, authority: Authority, tmp_path: Path, name: str
    ) -> None:
        folder = SignerFolder(tmp_path / "signers")
        folder.keep(name, server(authority).certificate_pem, authority.certificate_pem)
        assert folder.certificates(name) == []
        assert list(tmp_path.rglob("*.pem")) == [
            path for path in tmp_path.rglob("*.pem") if path.is_relative_to(tmp_path / "ours")
        ]

    def test_treats_a_damaged_file_as_missing(self, tmp_path: Path) -> None:
        (tmp_path / f"{'ab' * 32}.pem").write_text("rubbish")
        assert SignerFolder(tmp_path).certificates("ab" * 32) == []
