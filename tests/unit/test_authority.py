"""What the authority signs, what it refuses, and what the files of an identity survive."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coordinator.pki.authority import Authority
from wire.errors import NAME_INVALID, REQUEST_INVALID, ConfigurationError, Refusal
from wire.identity import files as identity_files
from wire.identity.files import IdentityFiles, key_pem, new_key, pending_key
from wire.identity.identity import (
    Identity,
    Role,
    presented_certificate,
    read_certificate,
    signed_by,
    valid_name,
)

pytestmark = pytest.mark.slow

NOW = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
MONTH = timedelta(days=30)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority", "rhine-clinics", NOW)


def request_pem(
    key: CertificateIssuerPrivateKeyTypes,
    common_name: str = "whatever",
    extension: x509.ExtensionType | None = None,
) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    if extension is not None:
        builder = builder.add_extension(extension, critical=False)
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, algorithm).public_bytes(Encoding.PEM)


def usages(pem: bytes) -> list[x509.ObjectIdentifier]:
    certificate = x509.load_pem_x509_certificate(pem)
    return list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


class TestAuthority:
    def test_the_token_decides_the_name_and_not_the_request(self, authority: Authority) -> None:
        wish = x509.SubjectAlternativeName(
            [x509.UniformResourceIdentifier("spiffe://rhine-clinics/admin/root")]
        )
        key = new_key()
        pem = authority.issue(request_pem(key, "root", wish), Role.SILO, "hospital-a", MONTH, NOW)
        issued = x509.load_pem_x509_certificate(pem)
        assert read_certificate(pem).identity == Identity("rhine-clinics", Role.SILO, "hospital-a")
        assert issued.public_key() == key.public_key()
        assert "root" not in issued.subject.rfc4514_string()

    def test_a_request_for_an_authority_of_its_own_is_not_granted(
        self, authority: Authority
    ) -> None:
        wish = x509.BasicConstraints(ca=True, path_length=None)
        pem = authority.issue(request_pem(new_key(), extension=wish), Role.SILO, "a", MONTH, NOW)
        issued = x509.load_pem_x509_certificate(pem)
        assert not issued.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        usage = issued.extensions.get_extension_for_class(x509.KeyUsage).value
        assert not usage.key_cert_sign

    def test_certificates_begin_a_little_early_and_end_on_time(self, authority: Authority) -> None:
        certificate = read_certificate(authority.issue_admin("ada", MONTH, NOW).certificate_pem)
        assert certificate.not_before == NOW - timedelta(minutes=5)
        assert certificate.not_after == NOW + MONTH

    def test_no_certificate_outlives_the_authority(self, tmp_path: Path) -> None:
        short = Authority.create(tmp_path, "rhine-clinics", NOW, lifetime=MONTH)
        issued = read_certificate(short.issue_admin("ada", 2 * MONTH, NOW).certificate_pem)
        assert issued.not_after == NOW + MONTH

    def test_silos_and_admins_are_clients_and_servers_are_servers(
        self, authority: Authority
    ) -> None:
        silo = authority.issue(request_pem(new_key()), Role.SILO, "a", MONTH, NOW)
        assert usages(silo) == [ExtendedKeyUsageOID.CLIENT_AUTH]
        admin = authority.issue_admin("ada", MONTH, NOW)
        assert usages(admin.certificate_pem) == [ExtendedKeyUsageOID.CLIENT_AUTH]
        server = authority.issue_server(["localhost"], MONTH, NOW)
        assert usages(server.certificate_pem) == [ExtendedKeyUsageOID.SERVER_AUTH]

    def test_a_server_carries_its_names_and_addresses(self, authority: Authority) -> None:
        server = authority.issue_server(["c.example.org", "10.0.0.7", "::1"], MONTH, NOW)
        leaf, issuer = x509.load_pem_x509_certificates(server.certificate_pem)
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == ["c.example.org"]
        assert names.get_values_for_type(x509.IPAddress) == [
            ip_address("10.0.0.7"),
            ip_address("::1"),
        ]
        assert issuer == authority.certificate
        key = load_pem_private_key(server.key_pem, None)
        assert key.public_key() == leaf.public_key()

    @pytest.mark.parametrize("host", ["c.example.org:7443", "https://c", "", "two words"])
    def test_what_is_no_host_is_refused(self, authority: Authority, host: str) -> None:
        with pytest.raises(ConfigurationError, match="not a host name"):
            authority.issue_server([host], MONTH, NOW)

    def test_leaves_chain_to_the_authority_and_the_authority_signs_no_authorities(
        self, authority: Authority
    ) -> None:
        leaf = authority.issue_admin("ada", MONTH, NOW).certificate_pem
        assert signed_by(leaf, authority.certificate_pem)
        extensions = authority.certificate.extensions
        limits = extensions.get_extension_for_class(x509.BasicConstraints)
        assert limits.critical
        assert limits.value == x509.BasicConstraints(ca=True, path_length=0)
        own = extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
        pointed = x509.load_pem_x509_certificate(leaf).extensions
        issuer = pointed.get_extension_for_class(x509.AuthorityKeyIdentifier).value
        assert issuer.key_identifier == own

    @pytest.mark.parametrize(
        "key",
        [
            ec.generate_private_key(ec.SECP384R1()),
            rsa.generate_private_key(65537, 2048),
        ],
        ids=["P-384", "RSA-2048"],
    )
    def test_keys_that_grpc_can_use_are_signed(
        self, authority: Authority, key: CertificateIssuerPrivateKeyTypes
    ) -> None:
        pem = authority.issue(request_pem(key), Role.SILO, "a", MONTH, NOW)
        assert x509.load_pem_x509_certificate(pem).public_key() == key.public_key()

    @pytest.mark.parametrize(
        "key",
        [
            ed25519.Ed25519PrivateKey.generate(),
            ec.generate_private_key(ec.SECP256K1()),
            rsa.generate_private_key(65537, 1024),
        ],
        ids=["Ed25519", "secp256k1", "RSA-1024"],
    )
    def test_keys_that_are_weak_or_useless_are_refused(
        self, authority: Authority, key: CertificateIssuerPrivateKeyTypes
    ) -> None:
        with pytest.raises(Refusal) as caught:
            authority.issue(request_pem(key), Role.SILO, "a", MONTH, NOW)
        assert caught.value.is_a(REQUEST_INVALID)

    def test_a_request_for_a_key_one_does_not_hold_is_refused(self, authority: Authority) -> None:
        der = bytearray(x509.load_pem_x509_csr(request_pem(new_key())).public_bytes(Encoding.DER))
        theirs = new_key().public_key().public_numbers()
        mine = x509.load_der_x509_csr(bytes(der)).public_key()
        assert isinstance(mine, ec.EllipticCurvePublicKey)
        at = der.index(mine.public_numbers().x.to_bytes(32, "big"))
        der[at : at + 64] = theirs.x.to_bytes(32, "big") + theirs.y.to_bytes(32, "big")
        forged = x509.load_der_x509_csr(bytes(der)).public_bytes(Encoding.PEM)
        with pytest.raises(Refusal, match="signature"):
            authority.issue(forged, Role.SILO, "a", MONTH, NOW)

    @pytest.mark.parametrize("text", [b"", b"nonsense", "ü".encode()])
    def test_garbage_is_a_refusal_and_not_a_crash(self, authority: Authority, text: bytes) -> None:
        with pytest.raises(Refusal) as caught:
            authority.issue(text, Role.SILO, "a", MONTH, NOW)
        assert caught.value.is_a(REQUEST_INVALID)

    def test_an_impossible_name_is_refused(self, authority: Authority) -> None:
        with pytest.raises(Refusal) as caught:
            authority.issue_admin("Root/../a", MONTH, NOW)
        assert caught.value.is_a(NAME_INVALID)

    def test_a_loaded_authority_is_the_one_created(self, tmp_path: Path) -> None:
        made = Authority.create(tmp_path, "rhine-clinics", NOW)
        again = Authority.load(tmp_path)
        assert (again.consortium, again.fingerprint) == ("rhine-clinics", made.fingerprint)
        leaf = again.issue_admin("ada", MONTH, NOW).certificate_pem
        assert signed_by(leaf, made.certificate_pem)

    def test_an_existing_authority_is_never_replaced(self, tmp_path: Path) -> None:
        made = Authority.create(tmp_path, "rhine-clinics", NOW)
        with pytest.raises(ConfigurationError, match="already holds an authority"):
            Authority.create(tmp_path, "rhine-clinics", NOW)
        assert Authority.load(tmp_path).fingerprint == made.fingerprint

    def test_an_interrupted_creation_is_completed_with_the_same_key(self, tmp_path: Path) -> None:
        Authority.create(tmp_path, "rhine-clinics", NOW)
        kept = (tmp_path / "authority-key.pem").read_bytes()
        (tmp_path / "authority.pem").unlink()
        Authority.create(tmp_path, "rhine-clinics", NOW)
        assert (tmp_path / "authority-key.pem").read_bytes() == kept
        Authority.load(tmp_path)

    def test_private_keys_are_for_their_owner_only(
        self, authority: Authority, tmp_path: Path
    ) -> None:
        server = authority.issue_server(["localhost"], MONTH, NOW)
        server.store(tmp_path / "server-key.pem", tmp_path / "server.pem")
        for path in (tmp_path / "authority" / "authority-key.pem", tmp_path / "server-key.pem"):
            assert path.stat().st_mode & 0o777 == 0o600
        assert "PRIVATE" not in repr(server)

    def test_missing_and_foreign_parts_are_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="no authority in"):
            Authority.load(tmp_path)
        Authority.create(tmp_path, "rhine-clinics", NOW)
        (tmp_path / "authority-key.pem").write_bytes(key_pem(new_key()))
        with pytest.raises(ConfigurationError, match=r"authority-key\.pem"):
            Authority.load(tmp_path)


class TestIdentity:
    def test_an_identity_is_its_uri(self) -> None:
        hospital = Identity("rhine-clinics", Role.SILO, "hospital-a")
        assert hospital.uri == "spiffe://rhine-clinics/silo/hospital-a"
        assert Identity.from_uri(hospital.uri) == hospital

    @pytest.mark.parametrize(
        "uri",
        [
            "spiffe://rhine-clinics/silo/",
            "spiffe://rhine-clinics/silo/a/b",
            "spiffe://rhine-clinics/king/a",
            "spiffe://rhine-clinics/silo/A",
            "spiffe://Rhine/silo/a",
            "spiffe://rhine-clinics:1/silo/a",
            "spiffe://me@rhine-clinics/silo/a",
            "spiffe://rhine-clinics/silo/a?x=1",
            "spiffe://rhine-clinics/silo/a#x",
            "spiffe://rhine-clinics/silo/%61",
            "https://rhine-clinics/silo/a",
            "spiffe:/silo/a",
            "spiffe://[/silo/a",
            "",
        ],
    )
    def test_anything_else_is_nobody(self, uri: str) -> None:
        assert Identity.from_uri(uri) is None

    @pytest.mark.parametrize(
        ("name", "fine"),
        [
            ("a", True),
            ("hospital-7", True),
            ("a" * 63, True),
            ("a" * 64, False),
            ("", False),
            ("7a", False),
            ("-a", False),
            ("A", False),
            ("a_b", False),
            ("a\n", False),
            ("é", False),
        ],
    )
    def test_valid_names(self, name: str, fine: bool) -> None:
        assert valid_name(name) is fine

    def test_two_identities_in_one_certificate_are_none(self) -> None:
        key = new_key()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
        uris = [f"spiffe://rhine-clinics/{role}/a" for role in ("silo", "admin")]
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(1)
            .not_valid_before(NOW)
            .not_valid_after(NOW + MONTH)
        )
        for named, expected in ((uris[:1], True), (uris, False), ([], False)):
            names = [x509.UniformResourceIdentifier(uri) for uri in named]
            extended = (
                builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
                if names
                else builder
            )
            pem = extended.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
            assert (read_certificate(pem).identity is not None) is expected

    def test_a_caller_is_known_by_exactly_one_certificate(self, authority: Authority) -> None:
        pem = authority.issue_admin("ada", MONTH, NOW).certificate_pem
        presented = presented_certificate({"x509_pem_cert": [pem]})
        assert presented is not None
        assert presented == read_certificate(pem)
        assert presented_certificate({}) is None
        assert presented_certificate({"x509_pem_cert": [pem, pem]}) is None
        assert presented_certificate({"x509_pem_cert": [b"nonsense"]}) is None


class TestIdentityFiles:
    def files(self, authority: Authority, folder: Path, name: str = "ada") -> IdentityFiles:
        issued = authority.issue_admin(name, MONTH, NOW)
        return IdentityFiles(
            folder=folder,
            key_pem=issued.key_pem,
            certificate_pem=issued.certificate_pem,
            authorities_pem=authority.certificate_pem,
            coordinator_address="c.example.org:7443",
            consortium="rhine-clinics",
            name=name,
        )

    def test_what_is_stored_is_loaded(self, authority: Authority, tmp_path: Path) -> None:
        files = self.files(authority, tmp_path)
        files.store()
        assert IdentityFiles.load(tmp_path) == files
        assert files.key_path.stat().st_mode & 0o777 == 0o600
        assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
            "authorities.pem",
            "certificate.pem",
            "connection.json",
            "key.pem",
        ]

    def test_who_has_not_joined_is_told_how(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="has not joined yet") as caught:
            IdentityFiles.load(tmp_path)
        assert "consilium agent join TOKEN" in caught.value.hint
        with pytest.raises(ConfigurationError, match="admin"):
            IdentityFiles.load(tmp_path, Role.ADMIN)

    @pytest.mark.parametrize("name", ["key.pem", "certificate.pem", "connection.json"])
    def test_a_damaged_file_is_named(self, authority: Authority, tmp_path: Path, name: str) -> None:
        self.files(authority, tmp_path).store()
        (tmp_path / name).write_text("nonsense")
        with pytest.raises(ConfigurationError, match=name):
            IdentityFiles.load(tmp_path)

    def test_a_key_that_is_not_the_certificates_is_refused(
        self, authority: Authority, tmp_path: Path
    ) -> None:
        self.files(authority, tmp_path).store()
        (tmp_path / "key.pem").write_bytes(key_pem(new_key()))
        with pytest.raises(ConfigurationError, match="does not belong"):
            IdentityFiles.load(tmp_path)

    @pytest.mark.parametrize("survived", range(5))
    def test_a_crash_while_renewing_leaves_a_whole_identity(
        self, authority: Authority, tmp_path: Path, survived: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old, new = self.files(authority, tmp_path), self.files(authority, tmp_path)
        old.store()
        steps = iter(range(5))

        def dying(act: Callable[..., None]) -> Callable[..., None]:
            def step(*arguments: object) -> None:
                if next(steps) == survived:
                    raise KeyboardInterrupt
                act(*arguments)

            return step

        for act in ("write_atomically", "_promote_pending_key"):
            monkeypatch.setattr(identity_files, act, dying(getattr(identity_files, act)))
        with pytest.raises(KeyboardInterrupt):
            new.store()
        monkeypatch.undo()
        found = IdentityFiles.load(tmp_path)
        assert found.certificate_pem in (old.certificate_pem, new.certificate_pem)
        certified = x509.load_pem_x509_certificate(found.certificate_pem).public_key()
        assert load_pem_private_key(found.key_path.read_bytes(), None).public_key() == certified
        assert (found.certificate_pem == new.certificate_pem) is (survived == 4)

    def test_a_pending_key_is_kept_until_it_is_certified(
        self, authority: Authority, tmp_path: Path
    ) -> None:
        first = pending_key(tmp_path / "new")
        assert key_pem(pending_key(tmp_path / "new")) == key_pem(first)
        assert (tmp_path / "new" / "pending-key.pem").stat().st_mode & 0o777 == 0o600
        self.files(authority, tmp_path / "new").store()
        assert key_pem(pending_key(tmp_path / "new")) != key_pem(first)
