"""What sslyze says of both ports: TLS 1.2 and 1.3, forward secrecy, authenticated encryption, no known weakness.

sslyze wants an older `cryptography` than Consilium and lives in an environment of its own, which `make test` makes.
"""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http2 import tls_context
from patience import PATIENCE
from siege import Siege, siege

SSLYZE = Path(sys.prefix) / "sslyze" / "bin" / "sslyze"
SCANS = [
    *("sslv3", "tlsv1", "tlsv1_1", "tlsv1_2", "tlsv1_3", "certinfo", "compression"),
    *("reneg", "heartbleed", "openssl_ccs", "robot", "fallback", "ems", "elliptic_curves"),
]
OLD = ("ssl_3_0", "tls_1_0", "tls_1_1")
FORBIDDEN = ("RC4", "3DES", "DES", "NULL", "EXPORT", "MD5", "_CBC_", "TLS_RSA_", "anon")


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    with siege(tmp_path_factory.mktemp("scan")) as running:
        yield running


@pytest.fixture(scope="module", params=["port", "enrolment_port"])
def scan(request: pytest.FixtureRequest, besieged: Siege) -> dict[str, Any]:
    """The scan's results by command; on the silos' port sslyze is a member."""
    assert SSLYZE.exists(), "make .venv/sslyze/.done"
    folder = besieged.folder
    authority = folder / "authority.pem"
    authority.write_bytes(besieged.authority.certificate_pem)
    report = folder / f"{request.param}.json"
    member = []
    if request.param == "port":
        files = besieged.attacker()
        member = ["--cert", str(files.certificate_path), "--key", str(files.key_path)]
    done = subprocess.run(
        [
            str(SSLYZE),
            *(f"--{name}" for name in SCANS),
            *("--json_out", str(report), "--certinfo_ca_file", str(authority)),
            *member,
            f"localhost:{getattr(besieged, request.param)}",
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (server,) = json.loads(report.read_text())["server_scan_results"]
    results = server["scan_result"]
    attempted = {name: scan for name, scan in results.items() if scan["status"] != "NOT_SCHEDULED"}
    failed = {n: s["error_reason"] for n, s in attempted.items() if s["status"] != "COMPLETED"}
    assert not failed
    assert len(attempted) == len(SCANS)
    return {name: scan["result"] for name, scan in attempted.items()}


def suites(scan: dict[str, Any], version: str) -> list[str]:
    accepted = scan[f"{version}_cipher_suites"]["accepted_cipher_suites"]
    return [suite["cipher_suite"]["name"] for suite in accepted]


def test_nothing_older_than_tls_1_2_is_spoken(scan: dict[str, Any]) -> None:
    assert {version: suites(scan, version) for version in OLD} == {version: [] for version in OLD}
    assert suites(scan, "tls_1_2")
    assert suites(scan, "tls_1_3")


def test_every_cipher_suite_has_forward_secrecy_and_authenticated_encryption(
    scan: dict[str, Any],
) -> None:
    for name in suites(scan, "tls_1_2"):
        assert name.startswith("TLS_ECDHE_ECDSA_"), name
        assert not any(weak in name for weak in FORBIDDEN), name
        assert "_GCM_" in name or "_CHACHA20_POLY1305_" in name, name
    assert set(suites(scan, "tls_1_3")) <= {
        "TLS_AES_128_GCM_SHA256",
        "TLS_AES_256_GCM_SHA384",
        "TLS_CHACHA20_POLY1305_SHA256",
    }


def test_no_known_attack_works(scan: dict[str, Any]) -> None:
    assert not scan["tls_compression"]["supports_compression"]
    assert not scan["heartbleed"]["is_vulnerable_to_heartbleed"]
    assert not scan["openssl_ccs_injection"]["is_vulnerable_to_ccs_injection"]
    assert scan["robot"]["robot_result"].startswith("NOT_VULNERABLE")
    renegotiation = scan["session_renegotiation"]
    assert renegotiation["supports_secure_renegotiation"]
    assert not renegotiation["is_vulnerable_to_client_renegotiation_dos"]
    assert scan["tls_fallback_scsv"]["supports_fallback_scsv"]
    assert scan["tls_extended_master_secret"]["supports_ems_extension"]


def test_the_certificate_is_the_consortiums_and_for_this_host(scan: dict[str, Any]) -> None:
    (deployment,) = scan["certificate_info"]["certificate_deployments"]
    assert deployment["received_chain_has_valid_order"]
    assert not deployment["verified_chain_has_sha1_signature"]
    stores = deployment["path_validation_results"]
    ours = [s for s in stores if s["trust_store"]["path"].endswith("authority.pem")]
    assert [store["was_validation_successful"] for store in ours] == [True]
    # And nobody else vouches for it.
    assert not any(s["was_validation_successful"] for s in stores if s not in ours)


@pytest.mark.parametrize("port", ["port", "enrolment_port"])
def test_ssl_2_is_not_understood(besieged: Siege, port: str) -> None:
    # By hand: sslyze cannot speak it with a certificate like ours.
    suites, challenge = b"\x01\x00\x80\x07\x00\xc0", bytes(16)
    hello = b"\x01\x00\x02" + len(suites).to_bytes(2) + bytes(2) + len(challenge).to_bytes(2)
    hello += suites + challenge
    with socket.create_connection(("127.0.0.1", getattr(besieged, port)), timeout=PATIENCE) as raw:
        raw.sendall((0x8000 | len(hello)).to_bytes(2) + hello)
        try:
            answer = raw.recv(4096)
        except ConnectionError:
            answer = b""
    # An SSL 2 server's hello is message 4; a TLS alert or nothing is a refusal.
    assert answer[2:3] != b"\x04"
    assert answer[:1] in (b"", b"\x15")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
@pytest.mark.parametrize("port", ["port", "enrolment_port"])
@pytest.mark.parametrize(
    ("version", "accepted"),
    [
        (ssl.TLSVersion.TLSv1_1, False),
        (ssl.TLSVersion.TLSv1_2, True),
        (ssl.TLSVersion.TLSv1_3, True),
    ],
)
def test_python_agrees(besieged: Siege, port: str, version: ssl.TLSVersion, accepted: bool) -> None:
    context = tls_context(besieged.honest[0].identity, besieged.authority.certificate_pem)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    try:
        with (
            socket.create_connection(
                ("127.0.0.1", getattr(besieged, port)), timeout=PATIENCE
            ) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as tls,
        ):
            spoken = tls.version()
    except (ssl.SSLError, ConnectionError):
        spoken = None
    assert (spoken is not None) == accepted
