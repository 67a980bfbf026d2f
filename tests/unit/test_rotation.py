"""Authorities that follow each other, and the server's certificate that follows them."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from foreign_leaf import Order
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from coordinator.cli.coordinator import app
from coordinator.metrics.instruments import Metrics
from coordinator.pki.authority import Authority
from coordinator.pki.certificate_keeper import ServerCertificateKeeper, ensure_leaf
from coordinator.pki.credentials import Credentials, ServerLeaf, server_files
from coordinator.pki.key_request import certificate_key_hash
from coordinator.pki.rotation import Authorities, begin, finish, prepare
from coordinator.settings import CoordinatorHome, CoordinatorSettings
from coordinator.store import Store
from coordinator.store.actors import Caller, LocalActor
from coordinator.store.audit import Act
from coordinator.store.executor import StoreExecutor
from coordinator.store.records import IssuedCertificate, TokenRecord
from wire.errors import CERTIFICATE_SUPERSEDED, ConfigurationError, Refusal
from wire.identity.files import key_pem, new_key
from wire.identity.identity import Identity, Role, issuer_of, read_certificate

pytestmark = pytest.mark.slow

NOW = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
DAY = timedelta(days=1)
SETTINGS = CoordinatorSettings(consortium="rhine-clinics", hosts=("localhost", "10.0.0.7"))


@pytest.fixture
def home(tmp_path: Path) -> CoordinatorHome:
    home = CoordinatorHome(tmp_path)
    authority = Authority.create(home.authority, "rhine-clinics", NOW)
    ensure_leaf(home, SETTINGS, Authorities(authority), NOW)
    return home


def rotate(home: CoordinatorHome, now: datetime = NOW) -> Authorities:
    prepare(home.authority, now)
    return begin(home.authority)


class TestAuthorities:
    def test_before_a_rotation_there_is_one(self, home: CoordinatorHome) -> None:
        authorities = Authorities.load(home.authority)
        assert authorities.previous is None
        assert authorities.serving is authorities.signing
        assert authorities.bundle_pem == authorities.signing.certificate_pem

    def test_during_a_rotation_the_new_one_signs_and_the_old_one_serves(
        self, home: CoordinatorHome
    ) -> None:
        old = Authorities.load(home.authority).signing
        during = rotate(home)
        assert during.signing.fingerprint != old.fingerprint
        assert during.serving.fingerprint == old.fingerprint
        assert during.signing.consortium == "rhine-clinics"
        # The name tells a person which one it is.
        assert during.signing.certificate.subject != old.certificate.subject
        member = during.signing.issue_admin("ada", DAY, NOW).certificate_pem
        server = during.serving.issue_server(["localhost"], DAY, NOW).certificate_pem
        assert issuer_of(member, during.bundle_pem) == during.signing.fingerprint
        assert issuer_of(server, during.bundle_pem) == old.fingerprint
        again = Authorities.load(home.authority)
        assert again.bundle_pem == during.bundle_pem

    def test_preparing_changes_nothing_and_can_be_repeated(self, home: CoordinatorHome) -> None:
        before = Authorities.load(home.authority)
        first = prepare(home.authority, NOW)
        assert Authorities.load(home.authority).bundle_pem == before.bundle_pem
        assert prepare(home.authority, NOW + DAY).fingerprint == first.fingerprint
        assert begin(home.authority).signing.fingerprint == first.fingerprint

    def test_a_rotation_cannot_begin_twice_nor_end_before_it_began(
        self, home: CoordinatorHome
    ) -> None:
        with pytest.raises(ConfigurationError, match="not being replaced"):
            finish(home.authority)
        rotate(home)
        with pytest.raises(ConfigurationError, match="already being replaced"):
            prepare(home.authority, NOW)

    def test_after_a_rotation_the_old_one_can_sign_no_more_but_is_remembered(
        self, home: CoordinatorHome
    ) -> None:
        old = Authorities.load(home.authority).signing
        new = rotate(home).signing
        after = finish(home.authority)
        assert after.previous is None
        assert after.bundle_pem == new.certificate_pem
        assert not (home.authority / "authority-key.pem").exists()
        assert (home.authority / "authority.pem").read_bytes() == old.certificate_pem

    def test_rotations_follow_each_other(self, home: CoordinatorHome) -> None:
        seen = [Authorities.load(home.authority).signing.fingerprint]
        for _ in range(2):
            rotate(home)
            seen.append(finish(home.authority).signing.fingerprint)
        assert len(set(seen)) == 3
        assert Authorities.load(home.authority).signing.fingerprint == seen[-1]

    def test_a_damaged_state_is_named(self, home: CoordinatorHome) -> None:
        (home.authority / "rotation.json").write_text("{}")
        with pytest.raises(ConfigurationError, match=r"rotation\.json"):
            Authorities.load(home.authority)


class TestLeaf:
    def reason(self, home: CoordinatorHome, now: datetime = NOW) -> str | None:
        return ensure_leaf(home, SETTINGS, Authorities.load(home.authority), now)

    def test_a_fit_one_is_left_alone(self, home: CoordinatorHome) -> None:
        before = ServerLeaf.read(home.server)
        assert self.reason(home) is None
        assert self.reason(home, NOW + 19 * DAY) is None
        assert ServerLeaf.read(home.server) == before

    def test_it_is_renewed_with_a_new_key_at_two_thirds_of_its_life(
        self, home: CoordinatorHome
    ) -> None:
        before = ServerLeaf.read(home.server)
        assert self.reason(home, NOW + 20 * DAY) == "two thirds of its life were over"
        after = ServerLeaf.read(home.server)
        assert after.key_pem != before.key_pem
        assert after.certificate.not_after == NOW + 50 * DAY

    @pytest.mark.parametrize("file", [0, 1], ids=["key", "certificate"])
    def test_a_crash_between_its_two_files_is_mended(
        self, home: CoordinatorHome, file: int
    ) -> None:
        torn = server_files(home.server)[file]
        fresh = Authorities.load(home.authority).signing.issue_server(["localhost"], DAY, NOW)
        torn.write_bytes([fresh.key_pem, fresh.certificate_pem][file])
        with pytest.raises(ConfigurationError, match="belong together"):
            ServerLeaf.read(home.server)
        assert self.reason(home) == "there was none that could be used"
        ServerLeaf.read(home.server)

    def test_new_hosts_need_a_new_one(self, home: CoordinatorHome) -> None:
        moved = SETTINGS.model_copy(update={"hosts": ("c.example.org",)})
        authorities = Authorities.load(home.authority)
        assert ensure_leaf(home, moved, authorities, NOW) is not None
        assert ensure_leaf(home, moved, authorities, NOW) is None

    def test_it_changes_authority_at_the_end_of_a_rotation_and_not_before(
        self, home: CoordinatorHome
    ) -> None:
        old = Authorities.load(home.authority).signing
        during = rotate(home)
        assert self.reason(home) is None
        # Renewed during a rotation, it is still the old one's: silos may know no other.
        assert self.reason(home, NOW + 25 * DAY) is not None
        leaf = ServerLeaf.read(home.server).certificate_pem
        assert issuer_of(leaf, during.bundle_pem) == old.fingerprint
        after = finish(home.authority)
        assert self.reason(home, NOW + 25 * DAY) == "its authority has been replaced"
        leaf = ServerLeaf.read(home.server).certificate_pem
        assert issuer_of(leaf, after.bundle_pem) == after.signing.fingerprint


class TestCredentials:
    def test_they_follow_the_files(self, home: CoordinatorHome) -> None:
        credentials = Credentials(home)
        before = credentials.leaf
        credentials.refresh()
        assert credentials.leaf is before
        during = rotate(home)
        ensure_leaf(home, SETTINGS, during, NOW + 25 * DAY)
        assert credentials.leaf is before
        credentials.refresh()
        assert credentials.authorities.bundle_pem == during.bundle_pem
        assert credentials.leaf == ServerLeaf.read(home.server) != before

    @pytest.mark.parametrize("damage", ["torn", "missing", "authority"])
    def test_what_cannot_be_used_changes_nothing(self, home: CoordinatorHome, damage: str) -> None:
        credentials = Credentials(home)
        leaf, authorities = credentials.leaf, credentials.authorities
        key_path, certificate_path = server_files(home.server)
        good = key_path.read_bytes()
        if damage == "torn":
            key_path.write_bytes(key_pem(new_key()))
        elif damage == "missing":
            certificate_path.unlink()
        else:
            (home.authority / "rotation.json").write_text("nonsense")
        credentials.refresh()
        assert credentials.leaf is leaf
        assert credentials.authorities is authorities
        if damage == "torn":
            # And what is mended is used again.
            key_path.write_bytes(good)
            credentials.refresh()
            assert credentials.leaf == leaf
            assert credentials.leaf is not leaf

    def test_receipts_are_signed_by_whom_the_store_knows(self, home: CoordinatorHome) -> None:
        store, credentials = Store(f"sqlite:///{home.root / 'store.db'}"), Credentials(home)
        in_store, metrics = StoreExecutor(), Metrics(registry := CollectorRegistry())
        times = iter([NOW, NOW + 25 * DAY, NOW + 25 * DAY])
        certificate_keeper = ServerCertificateKeeper(
            home, SETTINGS, credentials, store, in_store, metrics, lambda: next(times)
        )
        first = credentials.signer.fingerprint

        def expiry() -> float | None:
            return registry.get_sample_value(
                "consilium_server_certificate_expiry_timestamp_seconds"
            )

        asyncio.run(certificate_keeper.check())
        assert credentials.signer.fingerprint == first
        assert expiry() == (NOW + 30 * DAY).timestamp()
        asyncio.run(certificate_keeper.check())
        second = credentials.signer.fingerprint
        assert second == credentials.leaf.certificate.fingerprint != first
        assert store.signers.get(second).encode() == credentials.leaf.certificate_pem
        assert expiry() == (NOW + 55 * DAY).timestamp()
        asyncio.run(certificate_keeper.check())
        assert credentials.signer.fingerprint == second
        in_store.close()
        store.close()


class TestHoldings:
    def test_everyone_whom_the_end_of_an_authority_would_lock_out_is_known(
        self, home: CoordinatorHome
    ) -> None:
        store = Store(f"sqlite:///{home.root / 'store.db'}")
        authority = Authorities.load(home.authority).signing

        def adopt(role: Role, name: str, life: timedelta = DAY) -> str:
            pem = authority.issue_admin(name, life, NOW).certificate_pem
            certificate = read_certificate(pem)
            issued = IssuedCertificate(pem.decode(), certificate.fingerprint, certificate.not_after)
            store.members.adopt(role, name, certificate_key_hash(pem), issued, NOW)
            return certificate.fingerprint

        adopt(Role.ADMIN, "ada")
        active = adopt(Role.SILO, "hospital-a")
        adopt(Role.SILO, "hospital-b")
        adopt(Role.SILO, "hospital-c")
        adopt(Role.SILO, "hospital-d", DAY / 2)
        store.members.suspend("hospital-b", NOW, LocalActor("admin/ada"), drop_ballots=False)
        store.members.revoke(Role.SILO, "hospital-c", NOW, LocalActor("admin/ada"))
        for name, expires in (("late", NOW), ("invited", NOW + DAY), ("unwanted", NOW + DAY)):
            token = TokenRecord(f"id-{name}", Role.SILO, name, "hash", expires)
            store.members.register(token, NOW, LocalActor("admin/ada"), replace_token=False)
        store.members.revoke(Role.SILO, "unwanted", NOW, LocalActor("admin/ada"))

        later = NOW + DAY * 3 / 4
        held = store.outstanding.certificates(later)
        assert [(one.role, one.name) for one in held] == [
            (Role.ADMIN, "ada"),
            (Role.SILO, "hospital-a"),
            (Role.SILO, "hospital-b"),
        ]
        assert [one.name for one in store.outstanding.invitations(later)] == ["invited"]

        store.members.admit(Caller(Identity("hospitals", Role.SILO, "hospital-a"), active))
        fingerprint = authority.fingerprint
        store.outstanding.authority_changed(Act.AUTHORITY_ROTATION_FINISHED, fingerprint, NOW, held)
        assert store.outstanding.certificates(later) == []
        with pytest.raises(Refusal) as caught:
            store.members.admit(Caller(Identity("hospitals", Role.SILO, "hospital-a"), active))
        assert caught.value.is_a(CERTIFICATE_SUPERSEDED)
        entry = store.audit.page()[-1].entry
        assert entry["act"] == "authority_rotation_finished"
        assert entry["details"] == {"withdrawn": 3}
        store.close()


class TestCommands:
    def run(self, home: Path, *arguments: str) -> str:
        result = CliRunner().invoke(app, [*arguments, "--home", str(home)])
        if result.exception is not None:
            raise result.exception
        return result.output

    def status(self, home: Path) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run(home, "status", "--json"))
        return found

    def test_finishing_names_whom_it_would_lock_out_and_force_locks_them_out(
        self, tmp_path: Path
    ) -> None:
        home = CoordinatorHome(tmp_path)
        self.run(tmp_path, "init", "--admin", "ada")
        first = self.status(tmp_path)
        assert (first["rotation"], first["missing"]) == ("none", [])
        self.run(tmp_path, "rotate-authority")
        during = self.status(tmp_path)
        assert during["previous_authority"] == first["authority"] != during["authority"]
        assert during["missing"] == ["admin ada (active)"]
        assert during["server_certificate"] == first["server_certificate"]
        with pytest.raises(ConfigurationError, match="admin ada") as caught:
            self.run(tmp_path, "rotate-authority", "--finish")
        assert "consilium admin renew" in caught.value.hint
        assert self.status(tmp_path) == during
        assert "Locked out: admin ada" in self.run(
            tmp_path, "rotate-authority", "--finish", "--force"
        )
        assert self.status(tmp_path)["rotation"] == "none"
        store = Store(home.database_url(home.settings()))
        held = read_certificate((home.admin / "certificate.pem").read_bytes())
        with pytest.raises(Refusal) as refused:
            store.members.admit(Caller(Identity("hospitals", Role.ADMIN, "ada"), held.fingerprint))
        assert refused.value.is_a(CERTIFICATE_SUPERSEDED)
        store.close()

    def test_a_folder_without_a_coordinator_is_named(self, tmp_path: Path) -> None:
        for arguments in (["status"], ["rotate-authority"], ["rotate-authority", "--finish"]):
            with pytest.raises(ConfigurationError, match="no coordinator in"):
                self.run(tmp_path, *arguments)

    def test_a_certificate_of_another_program_must_follow_before_the_end(
        self, tmp_path: Path
    ) -> None:
        home, external_certificate_folder, now = (
            CoordinatorHome(tmp_path),
            tmp_path / "brought",
            datetime.now(UTC),
        )
        self.run(tmp_path, "init")
        with home.settings_file.open("a") as file:
            file.write("server_certificate_folder: brought\n")
        order = Order(
            names=("localhost",),
            uris=("spiffe://consilium/coordinator/coordinator",),
            begins=now - DAY,
            ends=now + DAY,
        )
        order.bring(external_certificate_folder, home.authority)
        assert "before --finish" in self.run(tmp_path, "rotate-authority")
        with pytest.raises(ConfigurationError, match="not the authority members trust"):
            self.run(tmp_path, "rotate-authority", "--finish")
        order.bring(external_certificate_folder, home.authority / "2")
        with pytest.raises(ConfigurationError, match="still needed by admin admin"):
            self.run(tmp_path, "rotate-authority", "--finish")
