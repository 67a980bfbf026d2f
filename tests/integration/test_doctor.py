"""`consilium agent doctor`: each failure really produced, each named at the step where it happens."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from coordinator_process import (
    RunningCoordinator,
    consilium,
    free_ports,
    running_coordinator,
    write_data,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from loopback import DAY, Consortium
from proxy import RunningProxy, running_proxy

from coordinator.pki.authority import Authority, IssuedKey
from silo_agent.agent.doctor.doctor import DoctorInputs, run_checks
from silo_agent.shared.home import SiloHome
from wire.identity.files import key_pem, new_key
from wire.identity.identity import Role
from wire.identity.join_token import JoinToken
from wire.net.proxy import Proxy
from wire.runtime.findings import Finding, Status

GATEWAY = "Hospital Web Gateway CA"


def found(around: DoctorInputs) -> dict[str, Finding]:
    """The network side's findings by name."""
    return {finding.name: finding for finding in run_checks(around)}


def statuses(findings: dict[str, Finding]) -> dict[str, str]:
    return {name: str(finding.status) for name, finding in findings.items()}


def skipped_after(findings: dict[str, Finding], name: str) -> set[str]:
    """What was not tried because `name` failed."""
    return {
        finding.name
        for finding in findings.values()
        if finding.status is Status.SKIPPED and finding.sentence == f"Not tried: {name} failed."
    }


def silo_of(consortium: Consortium, address: str, issued: IssuedKey | None = None) -> DoctorInputs:
    """A hospital that joined `consortium` and was told to dial `address`."""
    home = SiloHome(consortium.folder / "silo")
    issued = issued or consortium.issue(Role.SILO, "north")
    files = consortium.files(issued, "north")
    dataclasses.replace(files, folder=home.identity, coordinator_address=address).store()
    return DoctorInputs(
        home, with_private_side=False, environment={}, clock=lambda: consortium.now, timeout=2.0
    )


@contextlib.contextmanager
def tls_server(issued: IssuedKey, folder: Path) -> Iterator[str]:
    """A TLS server that shows `issued` and waits for whatever comes."""
    (folder / "served.pem").write_bytes(issued.certificate_pem + issued.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "served.pem")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    caller, _ = listener.accept()
                except OSError:
                    return
                with caller, contextlib.suppress(OSError):
                    caller.settimeout(5)
                    with context.wrap_socket(caller, server_side=True) as tls:
                        tls.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"localhost:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def intercepted(host: str, now: datetime) -> IssuedKey:
    """What a firewall that inspects TLS shows: a certificate for `host` by its own authority."""
    authority, key = new_key(), new_key()
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, GATEWAY)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(authority, hashes.SHA256())
    )
    return IssuedKey(key_pem(key), certificate.public_bytes(Encoding.PEM))


class TestTheWayThere:
    def test_a_name_that_does_not_exist(self, consortium: Consortium) -> None:
        findings = found(silo_of(consortium, "nowhere.invalid:7443"))
        assert findings["DNS"].status is Status.FAILED
        assert "nowhere.invalid:7443 cannot be resolved" in findings["DNS"].sentence
        assert skipped_after(findings, "DNS") == {
            *("TCP", "HTTP proxy", "TLS"),
            *("role", "protocol", "clock"),
        }
        # What lies in the folder is examined all the same.
        assert findings["identity"].status is Status.OK
        assert findings["disk"].status in (Status.OK, Status.WARNING)

    def test_a_coordinator_that_is_down(self, consortium: Consortium) -> None:
        (port,) = free_ports(1)
        findings = found(silo_of(consortium, f"localhost:{port}"))
        assert statuses(findings)["DNS"] == "ok"
        assert findings["TCP"].status is Status.FAILED
        assert "nothing listens" in findings["TCP"].sentence
        assert "whether the coordinator runs" in findings["TCP"].next_step
        assert "TLS" in skipped_after(findings, "TCP")

    def test_a_port_of_plain_http(self, consortium: Consortium) -> None:
        server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
        server.RequestHandlerClass.log_message = lambda *_: None  # type: ignore[method-assign]
        with server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            findings = found(silo_of(consortium, f"localhost:{server.server_port}"))
            server.shutdown()
            thread.join()
        assert statuses(findings)["TCP"] == "ok"
        assert findings["TLS"].status is Status.FAILED
        assert "does not speak TLS" in findings["TLS"].sentence
        assert "role" in skipped_after(findings, "TLS")

    def test_a_firewall_that_intercepts_tls_is_named(
        self, consortium: Consortium, tmp_path: Path
    ) -> None:
        with tls_server(intercepted("localhost", consortium.now), tmp_path) as address:
            findings = found(silo_of(consortium, address))
        assert findings["TLS"].status is Status.FAILED
        assert "intercepts TLS" in findings["TLS"].sentence
        assert GATEWAY in findings["TLS"].sentence
        assert "exempt localhost from TLS inspection" in findings["TLS"].next_step

    def test_a_server_of_someone_else_is_not_called_an_interception(
        self, consortium: Consortium, tmp_path: Path
    ) -> None:
        other = intercepted("elsewhere.example.org", consortium.now)
        with tls_server(other, tmp_path) as address:
            findings = found(silo_of(consortium, address))
        assert findings["TLS"].status is Status.FAILED
        assert "intercepts" not in findings["TLS"].sentence
        assert GATEWAY in findings["TLS"].sentence

    def test_a_consortium_that_was_made_anew_is_not_called_an_interception(
        self, consortium: Consortium, stranger: Consortium, tmp_path: Path
    ) -> None:
        server = stranger.authority.issue_server(["localhost"], DAY, consortium.now)
        with tls_server(server, tmp_path) as address:
            findings = found(silo_of(consortium, address))
        assert findings["TLS"].status is Status.FAILED
        assert "not by the consortium's authority" in findings["TLS"].sentence
        assert "intercepts" not in findings["TLS"].sentence

    @pytest.mark.parametrize(
        ("hosts", "shift", "word"),
        [
            (["elsewhere.example.org"], timedelta(0), "not for the name localhost"),
            (["localhost"], -2 * DAY, "expired"),
        ],
        ids=["name", "expired"],
    )
    def test_a_server_certificate_with_the_wrong_name_or_time(
        self,
        consortium: Consortium,
        tmp_path: Path,
        hosts: list[str],
        shift: timedelta,
        word: str,
    ) -> None:
        server = consortium.authority.issue_server(hosts, DAY, consortium.now + shift)
        with tls_server(server, tmp_path) as address:
            findings = found(silo_of(consortium, address))
        assert findings["TLS"].status is Status.FAILED
        assert word in findings["TLS"].sentence


class TestBeforeJoining:
    def test_nothing_is_known_without_a_token(self, tmp_path: Path) -> None:
        home = SiloHome(tmp_path / "silo")
        findings = found(DoctorInputs(home, with_private_side=False, environment={}))
        assert findings["identity"].status is Status.FAILED
        assert "has not joined yet" in findings["identity"].sentence
        assert "--token" in findings["identity"].next_step
        assert statuses(findings)["DNS"] == "skipped"
        assert not home.root.exists()

    def test_a_token_leads_to_the_enrolment_port_and_is_not_spent(
        self, live: RunningCoordinator, tmp_path: Path
    ) -> None:
        token = live.register("early")
        told = consilium(
            "agent", "doctor", "--token", token, "--home", tmp_path / "silo", "--json"
        ).json()
        names = [finding["name"] for finding in told["findings"]]
        assert names == [
            *("join token", "DNS", "TCP", "HTTP proxy", "TLS"),
            *("disk", "file access", "environment"),
        ]
        assert told["status"] in ("ok", "warning")
        consilium("agent", "join", token, "--home", tmp_path / "silo")

    def test_an_intercepted_enrolment_is_named(
        self, consortium: Consortium, tmp_path: Path
    ) -> None:
        with tls_server(intercepted("localhost", consortium.now), tmp_path) as address:
            token = JoinToken.issue(
                address,
                "rhine-clinics",
                Role.SILO,
                "north",
                consortium.now + DAY,
                consortium.authority.certificate,
            )
            around = DoctorInputs(
                SiloHome(tmp_path / "silo"),
                token=token,
                environment={},
                clock=lambda: consortium.now,
            )
            findings = found(around)
        assert GATEWAY in findings["TLS"].sentence

    def test_an_expired_token_is_named_and_the_way_examined_all_the_same(
        self, consortium: Consortium, tmp_path: Path
    ) -> None:
        token = JoinToken.issue(
            "nowhere.invalid:7444",
            "rhine-clinics",
            Role.SILO,
            "north",
            consortium.now - DAY,
            consortium.authority.certificate,
        )
        findings = found(DoctorInputs(SiloHome(tmp_path), token=token, environment={}))
        assert statuses(findings)["join token"] == "failed"
        assert statuses(findings)["DNS"] == "failed"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCoordinator]:
    """A coordinator in a process of its own."""
    with running_coordinator(tmp_path_factory.mktemp("live")) as coordinator:
        yield coordinator


@pytest.fixture(scope="module")
def north(live: RunningCoordinator, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a silo that has joined."""
    home = tmp_path_factory.mktemp("silos") / "north"
    write_data(home, 40, seed=1)
    consilium("agent", "join", live.register("north"), "--home", home)
    return home


def around(home: Path, **more: object) -> DoctorInputs:
    plain = DoctorInputs(SiloHome(home), with_private_side=False, environment={})
    return dataclasses.replace(plain, **more)


class TestAJoinedSilo:
    def test_all_is_well(self, north: Path) -> None:
        told = consilium("agent", "doctor", "--home", north)
        assert "All is well" in told.out or "see the warnings" in told.out
        findings = consilium("agent", "doctor", "--home", north, "--json").json()["findings"]
        assert [finding["name"] for finding in findings] == [
            *("DNS", "TCP", "HTTP proxy", "TLS", "identity", "key file"),
            *("role", "protocol", "clock", "disk", "file access", "environment"),
            *("isolation", "trainer's disk", "trainer's files", "silo.yaml", "policy"),
            *("privacy", "ledger", "GPU"),
            *("private data", "patients", "learner", "data schema"),
        ]
        for finding in findings:
            assert finding["name"] in told.out
            assert finding["status"] in ("ok", "warning")
            assert bool(finding["next_step"]) == (finding["status"] == "warning")

    def test_it_leaves_no_trace_at_the_coordinator(
        self, live: RunningCoordinator, north: Path
    ) -> None:
        before = live.run("silo", "show", "north", "--json").json()
        found(around(north))
        assert live.run("silo", "show", "north", "--json").json() == before

    def test_a_clock_that_is_wrong(self, north: Path) -> None:
        slow = found(around(north, clock=lambda: datetime.now(UTC) - timedelta(minutes=2)))
        assert slow["clock"].status is Status.WARNING
        assert "2 minutes behind" in slow["clock"].sentence
        fast = found(around(north, clock=lambda: datetime.now(UTC) + timedelta(minutes=10)))
        assert fast["clock"].status is Status.FAILED
        assert "10 minutes ahead of" in fast["clock"].sentence

    def test_a_certificate_that_has_expired(self, north: Path) -> None:
        later = datetime.now(UTC) + 30 * DAY
        findings = found(around(north, clock=lambda: later))
        assert findings["identity"].status is Status.FAILED
        assert "north expired at" in findings["identity"].sentence
        assert skipped_after(findings, "identity") == {"role", "protocol", "clock"}

    def test_a_certificate_that_will_expire_soon(self, north: Path) -> None:
        later = datetime.now(UTC) + 5 * DAY
        findings = found(around(north, clock=lambda: later))
        assert findings["identity"].status is Status.WARNING
        assert "renews it by itself" in findings["identity"].next_step

    def test_a_certificate_the_coordinator_really_refuses(
        self, live: RunningCoordinator, consortium: Consortium
    ) -> None:
        theirs = Consortium(
            consortium.folder, Authority.load(live.home / "authority"), consortium.now
        )
        address = f"localhost:{live.port}"
        expired = theirs.issue(Role.SILO, "north", consortium.now - 2 * DAY)
        findings = found(silo_of(theirs, address, expired))
        assert statuses(findings)["TLS"] == "ok"
        assert findings["identity"].status is Status.FAILED
        assert "north expired at" in findings["identity"].sentence
        assert "join" in findings["identity"].next_step
        forged = consortium.issue(Role.SILO, "north")
        findings = found(silo_of(theirs, address, forged))
        assert statuses(findings)["TLS"] == "ok"
        assert "refused this certificate" in findings["identity"].sentence
        assert "not by the consortium's authority" in findings["identity"].sentence

    def test_a_silo_that_was_revoked(self, live: RunningCoordinator, tmp_path: Path) -> None:
        consilium("agent", "join", live.register("gone"), "--home", tmp_path)
        live.run("silo", "revoke", "gone", "--ballots", "drop", "--yes")
        findings = found(around(tmp_path))
        assert statuses(findings)["identity"] == "ok"
        assert findings["role"].status is Status.FAILED
        assert "gone has been revoked" in findings["role"].sentence
        assert skipped_after(findings, "role") == {"protocol", "clock"}

    def test_a_full_disk_and_a_key_for_all_to_read(
        self, live: RunningCoordinator, tmp_path: Path
    ) -> None:
        consilium("agent", "join", live.register("careless"), "--home", tmp_path)
        (tmp_path / "identity" / "key.pem").chmod(0o644)
        findings = found(around(tmp_path, free=lambda folder: 1000))
        assert findings["key file"].status is Status.WARNING
        assert "0644" in findings["key file"].sentence
        assert findings["disk"].status is Status.FAILED
        assert "Only 1.0 kB free" in findings["disk"].sentence

    def test_private_data_that_cannot_be_used(
        self, live: RunningCoordinator, tmp_path: Path
    ) -> None:
        consilium("agent", "join", live.register("odd"), "--home", tmp_path)
        write_data(tmp_path, 5, seed=1)
        (tmp_path / "data.csv").write_text("a,b,diagnosis\n1,2,smith\n")
        told = consilium("agent", "doctor", "--home", tmp_path, "--json", status=1)
        findings = {finding["name"]: finding for finding in told.json()["findings"]}
        assert told.json()["status"] == "failed"
        assert findings["private data"]["status"] == "failed"
        # Why is told where the data are.
        assert "state" not in findings["private data"]["sentence"]
        assert "consilium agent check" in findings["private data"]["next_step"]
        assert findings["data schema"]["status"] == "skipped"
        assert "smith" not in told.out + told.err
        told = consilium("agent", "doctor", "--home", tmp_path, status=1)
        assert "start with the first line marked failed" in told.out
        network = consilium("agent", "doctor", "--home", tmp_path, "--network-only")
        assert "private data" not in network.out

    def test_a_private_side_that_cannot_be_examined_is_said_to_be_elsewhere(
        self, north: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.executable", "/bin/false")
        findings = found(around(north, with_private_side=True))
        assert findings["private side"].status is Status.WARNING
        assert "consilium agent check" in findings["private side"].next_step


class TestThroughAProxy:
    @pytest.fixture
    def proxy(self, tmp_path: Path) -> Iterator[RunningProxy]:
        with running_proxy(tmp_path) as proxy:
            yield proxy

    def test_every_step_is_made_through_it(
        self, live: RunningCoordinator, north: Path, proxy: RunningProxy
    ) -> None:
        told = consilium("agent", "doctor", "--home", north, "--json", proxy=proxy.url)
        findings = {finding["name"]: finding for finding in told.json()["findings"]}
        assert "opens a tunnel" in findings["HTTP proxy"]["sentence"]
        assert f"proxy {proxy.address} takes connections" in findings["TCP"]["sentence"]
        assert findings["role"]["status"] == "ok"
        # One tunnel for the doctor's own dialling, one for gRPC.
        assert proxy.requests() == [f"200 localhost:{live.port}"] * 2

    def test_a_wrong_password(self, north: Path, proxy: RunningProxy) -> None:
        told = consilium("agent", "doctor", "--home", north, proxy=proxy.wrong_url, status=1)
        assert f"The proxy {proxy.address} refused a tunnel" in told.out
        assert "407 Proxy Authentication Required" in told.out
        assert "Check the user and the password" in told.out
        assert "Not tried: HTTP proxy failed." in told.out

    def test_a_proxy_that_cannot_reach_the_coordinator(
        self, consortium: Consortium, proxy: RunningProxy
    ) -> None:
        (port,) = free_ports(1)
        surroundings = dataclasses.replace(
            silo_of(consortium, f"localhost:{port}"), proxy=Proxy.parse(proxy.url)
        )
        findings = found(surroundings)
        assert findings["HTTP proxy"].status is Status.FAILED
        assert "502 Bad Gateway" in findings["HTTP proxy"].sentence
        assert f"can reach localhost:{port}" in findings["HTTP proxy"].next_step

    def test_a_proxy_that_is_down_or_none(self, consortium: Consortium) -> None:
        (port,) = free_ports(1)
        surroundings = dataclasses.replace(
            silo_of(consortium, "localhost:1"), proxy=Proxy("localhost", port)
        )
        findings = found(surroundings)
        assert "nothing listens at the proxy" in findings["TCP"].sentence
        surroundings = dataclasses.replace(surroundings, proxy=Proxy("wall.invalid", 3128))
        assert "the proxy wall.invalid:3128" in found(surroundings)["DNS"].sentence
        with silent_port() as silent:
            surroundings = dataclasses.replace(surroundings, proxy=silent, timeout=0.2)
            assert "did not answer" in found(surroundings)["HTTP proxy"].sentence

    def test_a_password_on_the_command_line_is_warned_of(
        self, north: Path, proxy: RunningProxy, tmp_path: Path
    ) -> None:
        doctor = ("agent", "doctor", "--home", north, "--network-only", "--json", "--proxy")
        findings = json.loads(consilium(*doctor, proxy.url).out)["findings"]
        assert findings[-1]["name"] == "environment"
        assert findings[-1]["status"] == "warning"
        (tmp_path / "setting").write_text(proxy.url)
        findings = json.loads(consilium(*doctor, f"@{tmp_path / 'setting'}").out)["findings"]
        assert findings[-1]["status"] == "ok"


@contextlib.contextmanager
def silent_port() -> Iterator[Proxy]:
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield Proxy("127.0.0.1", listener.getsockname()[1])
