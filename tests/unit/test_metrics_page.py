"""Metrics pages: for whoever reaches them, or for those with a secret; never held up by who says nothing."""

from __future__ import annotations

import base64
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge

from coordinator.pki.authority import Authority
from wire.errors import ConfigurationError
from wire.net.metrics_page import CERTIFICATE, KEY, MetricsPage, PageAccess, serve_page

TOKEN = "0123456789abcdef0123"
PASSWORD = "prometheus:correct-horse"


@contextmanager
def served(access: PageAccess) -> Iterator[int]:
    """The port of a page with one number."""
    registry = CollectorRegistry()
    Gauge("answer", "The answer.", registry=registry).set(42)
    server = serve_page(MetricsPage("127.0.0.1", 0, access), registry)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def page(port: int, authorization: str = "", *, context: ssl.SSLContext | None = None) -> str:
    scheme = "https" if context else "http"
    request = urllib.request.Request(f"{scheme}://localhost:{port}/metrics")
    if authorization:
        request.add_header("Authorization", authorization)
    with urllib.request.urlopen(request, timeout=30, context=context) as answer:
        return str(answer.read(), "utf-8")


def status(port: int, authorization: str = "") -> int:
    try:
        page(port, authorization)
    except urllib.error.HTTPError as error:
        return error.code if b"answer" not in error.read() else 0
    return 200


def basic(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


def secret(tmp_path: Path, text: str) -> PageAccess:
    (tmp_path / "secret").write_text(text + "\n")
    return PageAccess(credentials_file=tmp_path / "secret")


def test_without_a_secret_whoever_reaches_the_page_reads_it() -> None:
    with served(PageAccess()) as port:
        assert "answer 42.0" in page(port)


def test_only_who_knows_the_secret_reads_the_page(tmp_path: Path) -> None:
    with served(secret(tmp_path, TOKEN)) as port:
        assert "answer 42.0" in page(port, f"Bearer {TOKEN}")
        wrong = (
            "",
            "Bearer",
            f"Bearer {TOKEN}x",
            f"bearer {TOKEN}",
            TOKEN,
            basic(TOKEN),
            "Basic é",
        )
        assert {status(port, shown.encode().decode("latin-1")) for shown in wrong} == {401}


def test_a_password_does_as_well(tmp_path: Path) -> None:
    with served(secret(tmp_path, PASSWORD)) as port:
        assert "answer 42.0" in page(port, basic(PASSWORD))
        assert status(port, basic("prometheus:wrong")) == 401


@pytest.mark.parametrize("text", ["", "short", "two\nlines of some length", "nön-ascii-token-here"])
def test_what_is_no_secret_is_refused_at_the_start(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match="credentials"), served(secret(tmp_path, text)):
        pass


def certificate(folder: Path, authority: Authority) -> Path:
    folder.mkdir(exist_ok=True)
    leaf = authority.issue_server(("localhost",), timedelta(hours=1), datetime.now(UTC))
    leaf.store(folder / KEY, folder / CERTIFICATE)
    return folder


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority", "rhine-clinics", datetime.now(UTC))


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority.certificate_pem.decode())


@pytest.mark.slow
def test_with_a_certificate_it_speaks_tls_and_takes_the_next_one(
    tmp_path: Path, authority: Authority
) -> None:
    folder = certificate(tmp_path / "tls", authority)
    with served(PageAccess(tls_folder=folder)) as port:
        assert "answer 42.0" in page(port, context=trusting(authority))
        with pytest.raises(OSError, match=r".*"):
            page(port)
        other = Authority.create(tmp_path / "other", "rhine-clinics", datetime.now(UTC))
        certificate(folder, other)
        assert "answer 42.0" in page(port, context=trusting(other))


@pytest.mark.slow
def test_whoever_says_nothing_holds_up_nobody(tmp_path: Path, authority: Authority) -> None:
    folder = certificate(tmp_path / "tls", authority)
    with served(PageAccess(tls_folder=folder)) as port:
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
        assert "answer 42.0" in page(port, context=trusting(authority))
        for one in silent:
            one.close()


def test_a_folder_without_a_certificate_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot use"), served(PageAccess(None, tmp_path)):
        pass
