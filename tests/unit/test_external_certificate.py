"""A server certificate that somebody else renews: shown only if members would accept it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from foreign_leaf import DAY, NOW, Order
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from coordinator.metrics.instruments import Metrics
from coordinator.pki.authority import Authority
from coordinator.pki.certificate_keeper import ServerCertificateKeeper, ensure_leaf
from coordinator.pki.credentials import Credentials, ServerLeaf
from coordinator.pki.external_certificate import check_before_finish
from coordinator.pki.rotation import Authorities, begin, finish, prepare
from coordinator.settings import CoordinatorHome, CoordinatorSettings
from coordinator.store import Store
from coordinator.store.executor import StoreExecutor
from wire.errors import ConfigurationError
from wire.identity.certificates import certificates_in
from wire.identity.identity import signed_by

pytestmark = pytest.mark.slow

SETTINGS = CoordinatorSettings(
    consortium="rhine-clinics",
    hosts=("c.example.org", "10.0.0.7"),
    server_certificate_folder="brought",
)


@pytest.fixture
def home(tmp_path: Path) -> CoordinatorHome:
    """A coordinator's folder as `init` leaves it: the server has a certificate of its own making."""
    home = CoordinatorHome(tmp_path / "home")
    authority = Authority.create(home.authority, "rhine-clinics", NOW - DAY)
    made_here = SETTINGS.model_copy(update={"server_certificate_folder": ""})
    ensure_leaf(home, made_here, Authorities(authority), NOW - DAY)
    return home


def folder(home: CoordinatorHome) -> Path:
    return home.root / "brought"


def look(home: CoordinatorHome, now: datetime = NOW) -> str | None:
    return ensure_leaf(home, SETTINGS, Authorities.load(home.authority), now)


class TestTaking:
    def test_what_was_brought_is_shown_with_the_authority_behind_it(
        self, home: CoordinatorHome
    ) -> None:
        before = ServerLeaf.read(home.server)
        Order().bring(folder(home), home.authority)
        assert look(home) == "a new one was provided"
        shown = ServerLeaf.read(home.server)
        assert shown.key_pem == (folder(home) / "tls.key").read_bytes() != before.key_pem
        chain = certificates_in(shown.certificate_pem)
        assert [one.public_bytes(Encoding.PEM) for one in chain] == [
            (folder(home) / "tls.crt").read_bytes(),
            Authorities.load(home.authority).signing.certificate_pem,
        ]
        assert look(home) is None
        assert (home.server / "key.pem").stat().st_mode & 0o777 == 0o600

    def test_it_is_never_renewed_here(self, home: CoordinatorHome) -> None:
        Order().bring(folder(home), home.authority)
        look(home)
        shown = ServerLeaf.read(home.server)
        assert look(home, NOW + 29 * DAY) is None
        assert ServerLeaf.read(home.server) == shown

    def test_nothing_is_written_where_it_was_brought(self, home: CoordinatorHome) -> None:
        Order().bring(folder(home), home.authority)
        before = {path: path.read_bytes() for path in folder(home).iterdir()}
        look(home)
        assert {path: path.read_bytes() for path in folder(home).iterdir()} == before

    def test_one_that_has_just_begun_waits_for_clocks_that_are_behind(
        self, home: CoordinatorHome
    ) -> None:
        Order(begins=NOW).bring(folder(home), home.authority)
        assert look(home) is None
        assert look(home, NOW + timedelta(minutes=5)) is not None

    def test_but_not_if_there_is_no_other(self, home: CoordinatorHome) -> None:
        (home.server / "certificate.pem").unlink()
        Order(begins=NOW).bring(folder(home), home.authority)
        assert look(home) is not None

    def test_without_the_folder_the_coordinator_makes_its_own_again(
        self, home: CoordinatorHome
    ) -> None:
        Order().bring(folder(home), home.authority)
        look(home)
        settings = SETTINGS.model_copy(update={"server_certificate_folder": ""})
        authorities = Authorities.load(home.authority)
        assert ensure_leaf(home, settings, authorities, NOW) is not None
        key = (home.server / "key.pem").read_bytes()
        assert key != (folder(home) / "tls.key").read_bytes()


class TestRefusing:
    @pytest.mark.parametrize(
        ("order", "sentence"),
        [
            (Order(ends=NOW - timedelta(seconds=1)), "expired at 2031-05-06 07:08 UTC"),
            (Order(begins=NOW + DAY), "is not valid before 2031-05-07"),
            (Order(names=("other.example.org",)), r"lacks c\.example\.org of `hosts`"),
            (Order(addresses=()), r"lacks 10\.0\.0\.7 of `hosts`"),
            (Order(uris=()), "spiffe://rhine-clinics/coordinator/coordinator"),
            (Order(uris=("spiffe://rhine-clinics/silo/st-mary",)), "does not name the coordinator"),
            (Order(uris=("spiffe://other/coordinator/coordinator",)), "does not name the coord"),
            (Order(purposes=(ExtendedKeyUsageOID.CLIENT_AUTH,)), "is not for TLS servers"),
            (Order(signs=False), "is not for TLS servers"),
            (Order(key=ec.generate_private_key(ec.SECP521R1())), "P-256 or P-384"),
            (Order(key=rsa.generate_private_key(65537, 2048)), "elliptic-curve key"),
        ],
    )
    def test_one_that_members_would_refuse(
        self, home: CoordinatorHome, order: Order, sentence: str
    ) -> None:
        before = ServerLeaf.read(home.server)
        order.bring(folder(home), home.authority)
        with pytest.raises(ConfigurationError, match=sentence) as caught:
            look(home)
        assert str(folder(home)) in caught.value.sentence
        assert caught.value.hint
        assert ServerLeaf.read(home.server) == before

    def test_one_of_another_authority_with_the_same_name(
        self, home: CoordinatorHome, tmp_path: Path
    ) -> None:
        Authority.create(tmp_path / "impostor", "rhine-clinics", NOW - DAY)
        Order().bring(folder(home), tmp_path / "impostor")
        with pytest.raises(ConfigurationError, match="not the authority members trust"):
            look(home)

    @pytest.mark.parametrize("missing", ["tls.key", "tls.crt"])
    def test_a_file_that_is_missing_is_named(self, home: CoordinatorHome, missing: str) -> None:
        Order().bring(folder(home), home.authority)
        (folder(home) / missing).unlink()
        with pytest.raises(ConfigurationError, match=f"{missing}: No such file"):
            look(home)

    def test_files_that_do_not_belong_together(self, home: CoordinatorHome) -> None:
        Order().bring(folder(home), home.authority)
        key = (folder(home) / "tls.key").read_bytes()
        Order().bring(folder(home), home.authority)
        (folder(home) / "tls.key").write_bytes(key)
        with pytest.raises(ConfigurationError, match="belong together"):
            look(home)


class TestRotation:
    def test_one_of_the_next_authority_is_shown_when_the_rotation_ends(
        self, home: CoordinatorHome
    ) -> None:
        Order().bring(folder(home), home.authority)
        look(home)
        prepare(home.authority, NOW - DAY)
        begin(home.authority)
        assert look(home) is None
        Order().bring(folder(home), home.authority / "2")
        # A restart in between is no reason to stop: the one before is still good.
        assert look(home) is None
        after = finish(home.authority)
        assert look(home) is not None
        leaf = ServerLeaf.read(home.server).certificate_pem
        assert signed_by(leaf, after.signing.certificate_pem)

    def test_before_that_it_is_refused_if_there_is_no_other(self, home: CoordinatorHome) -> None:
        prepare(home.authority, NOW - DAY)
        begin(home.authority)
        Order().bring(folder(home), home.authority / "2")
        (home.server / "key.pem").unlink()
        with pytest.raises(ConfigurationError, match="signed by the new authority") as caught:
            look(home)
        assert "rotate-authority --finish" in caught.value.hint

    def test_it_is_not_finished_with_one_of_the_old_authority(self, home: CoordinatorHome) -> None:
        def check(settings: CoordinatorSettings = SETTINGS) -> None:
            check_before_finish(home, settings, Authorities.load(home.authority), NOW)

        check()
        Order().bring(folder(home), home.authority)
        prepare(home.authority, NOW - DAY)
        begin(home.authority)
        with pytest.raises(ConfigurationError, match="not the authority members trust") as caught:
            check()
        assert "by the new authority first" in caught.value.hint
        check(SETTINGS.model_copy(update={"server_certificate_folder": ""}))
        Order().bring(folder(home), home.authority / "2")
        check()

    def test_one_of_the_old_authority_is_refused_afterwards(self, home: CoordinatorHome) -> None:
        Order().bring(folder(home), home.authority)
        look(home)
        prepare(home.authority, NOW - DAY)
        begin(home.authority)
        finish(home.authority)
        with pytest.raises(ConfigurationError, match="not the authority members trust"):
            look(home)


def test_a_running_coordinator_keeps_the_last_good_one_and_says_so_once(
    home: CoordinatorHome,
) -> None:
    order = Order()
    order.bring(folder(home), home.authority)
    look(home)
    store, credentials = Store(f"sqlite:///{home.root / 'store.db'}"), Credentials(home)
    in_store, registry = StoreExecutor(), CollectorRegistry()
    certificate_keeper = ServerCertificateKeeper(
        home, SETTINGS, credentials, store, in_store, Metrics(registry), lambda: NOW
    )

    def looked() -> list[str]:
        with capture_logs() as logs:
            asyncio.run(certificate_keeper.check())
        return [line["event"] for line in logs]

    shown = credentials.leaf
    replace(order, names=()).bring(folder(home), home.authority)
    assert looked() == ["server_certificate_refused"]
    assert looked() == []
    assert credentials.leaf == shown
    order.bring(folder(home), home.authority)
    assert looked() == ["server_certificate_renewed"]
    assert credentials.leaf.certificate_pem.startswith((folder(home) / "tls.crt").read_bytes())
    # Receipts follow, and the store knows who signs them.
    assert credentials.signer.fingerprint == credentials.leaf.certificate.fingerprint
    store.signers.get(credentials.signer.fingerprint)
    replace(order, names=()).bring(folder(home), home.authority)
    assert looked() == ["server_certificate_refused"]
    in_store.close()
    store.close()
