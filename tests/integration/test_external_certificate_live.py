"""A coordinator whose certificate another program makes and renews while silos are connected: openssl plays that program."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from patience import PATIENCE
from service import CONSILIUM, Service, eventually, free_port

from coordinator.pki.authority import Authority
from silo_agent.agent.coordinator_client import CoordinatorClient
from wire.identity.files import IdentityFiles
from wire.net.enrolment import join

_OPENSSL = """
[ca]
default_ca = authority
[authority]
database = {work}/index.txt
rand_serial = yes
new_certs_dir = {work}
certificate = {authority}/authority.pem
private_key = {authority}/authority-key.pem
default_md = sha256
policy = any
x509_extensions = leaf
unique_subject = no
[any]
commonName = supplied
[leaf]
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
basicConstraints = critical, CA:false
subjectAltName = DNS:localhost, URI:spiffe://consilium/coordinator/coordinator
"""


class Issuer:
    """Signs with an authority's files and lays the leaf, without a chain, where the coordinator finds it."""

    def __init__(self, authority: Path, work: Path, external_certificate_folder: Path) -> None:
        work.mkdir()
        external_certificate_folder.mkdir(exist_ok=True)
        (work / "index.txt").touch()
        (work / "openssl.cnf").write_text(_OPENSSL.format(work=work, authority=authority))
        self._work, self._brought, self._count = work, external_certificate_folder, 0

    def bring(self) -> str:
        """A new key and certificate, put there as a kubelet does; the fingerprint."""
        self._count += 1
        version = self._brought / f"..{self._work.name}-{self._count}"
        version.mkdir()
        key, request, leaf = version / "tls.key", self._work / "request.pem", version / "tls.crt"
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        self._openssl("req", "-new", *curve, "-keyout", key, "-out", request, "-subj", "/CN=server")
        begins = f"{datetime.now(UTC) - timedelta(hours=1):%Y%m%d%H%M%SZ}"
        ends = f"{datetime.now(UTC) + timedelta(days=1):%Y%m%d%H%M%SZ}"
        config = ("-batch", "-notext", "-config", self._work / "openssl.cnf")
        times = ("-startdate", begins, "-enddate", ends)
        self._openssl("ca", *config, *times, "-in", request, "-out", leaf)
        aside = self._brought / "..next"
        aside.symlink_to(version.name)
        aside.rename(self._brought / "..data")
        for name in ("tls.key", "tls.crt"):
            link = self._brought / name
            if not link.is_symlink():
                link.symlink_to(f"..data/{name}")
        return _fingerprint(leaf.read_text())

    def _openssl(self, *arguments: object) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def _fingerprint(pem: str) -> str:
    return x509.load_pem_x509_certificate(pem.encode()).fingerprint(SHA256()).hex()


def consilium(*arguments: object) -> str:
    command = [str(CONSILIUM), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.timeout(180)
def test_a_certificate_made_elsewhere_is_renewed_while_silos_are_connected(tmp_path: Path) -> None:
    home, external_certificate_folder = tmp_path / "coordinator", tmp_path / "brought"
    ports = [free_port() for _ in range(3)]
    flags = zip(("--port", "--enrolment-port", "--metrics-port"), ports, strict=True)
    address = ("--host", "localhost", "--listen", "127.0.0.1")
    words = [str(part) for flag in flags for part in flag]
    consilium("coordinator", "init", "--home", home, *address, *words)
    settings = yaml.safe_load((home / "coordinator.yaml").read_text())
    settings["server_certificate_folder"] = str(external_certificate_folder)
    (home / "coordinator.yaml").write_text(yaml.safe_dump(settings))
    issuer = Issuer(home / "authority", tmp_path / "issuer", external_certificate_folder)
    first = issuer.bring()

    coordinator = Service(["coordinator", "serve", "--home", str(home)], tmp_path / "log", {})
    coordinator.start()
    try:
        coordinator.until("coordinator_ready")
        assert shown(ports) == {first}
        token = consilium("silo", "register", "st-mary", "--json", "--home", home)
        told = yaml.safe_load(token)["join_token"]
        joined = asyncio.run(join(told, tmp_path / "silo", lambda: datetime.now(UTC)))

        async def connected() -> None:
            link = CoordinatorClient(joined.files)
            assert (await link.who_am_i(20)).name == "st-mary"
            second = await asyncio.to_thread(issuer.bring)
            await asyncio.to_thread(
                eventually, "the new certificate", lambda: shown(ports) == {second}
            )
            # The connection made under the certificate before goes on.
            assert (await link.who_am_i(20)).name == "st-mary"
            await link.close()
            # One of somebody else changes nothing but the log.
            Authority.create(tmp_path / "stranger", "consilium", datetime.now(UTC))
            Issuer(tmp_path / "stranger", tmp_path / "other", external_certificate_folder).bring()
            refused = await asyncio.to_thread(coordinator.until, "server_certificate_refused")
            assert "not the authority members trust" in refused["sentence"]
            assert shown(ports) == {second}
            assert await who(joined.files) == "st-mary"

        asyncio.run(connected())
        assert coordinator.stop() == 0
        # Nothing of ours lies where it was brought.
        assert {path.name for path in external_certificate_folder.iterdir()} == {
            *("tls.key", "tls.crt", "..data", "..issuer-1", "..issuer-2", "..other-1")
        }
        command = [str(CONSILIUM), "coordinator", "serve", "--home", str(home)]
        again = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        assert again.returncode == 1
        assert "not the authority members trust" in " ".join((again.stdout + again.stderr).split())
    finally:
        coordinator.end()


def shown(ports: list[int]) -> set[str]:
    """The certificates that both gRPC ports show."""
    return {_fingerprint(ssl.get_server_certificate(("localhost", port))) for port in ports[:2]}


async def who(files: IdentityFiles) -> str:
    link = CoordinatorClient(files)
    try:
        return (await link.who_am_i(20)).name
    finally:
        await link.close()
