"""A third party's proxy in between: Debian's tinyproxy, with basic authentication. Run by `make test-system`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from coordinator_process import (
    await_port,
    consilium,
    federation_through,
    free_ports,
    running_coordinator,
)

pytestmark = pytest.mark.system

CONFIGURATION = """
Port {port}
Listen 127.0.0.1
Allow 127.0.0.1
BasicAuth ada {password}
LogFile "{log}"
LogLevel Connect
MaxClients 20
Timeout 600
{tunnels}
"""


@contextmanager
def tinyproxy(folder: Path, *allowed: int) -> Iterator[tuple[int, Path]]:
    """Its port and its log; it opens tunnels to the `allowed` ports only."""
    (port,) = free_ports(1)
    log = folder / "tinyproxy.txt"
    tunnels = "\n".join(f"ConnectPort {number}" for number in allowed)
    settings = CONFIGURATION.format(port=port, log=log, password="secret", tunnels=tunnels)
    (folder / "tinyproxy.conf").write_text(settings)
    command = ["tinyproxy", "-d", "-c", str(folder / "tinyproxy.conf")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            await_port(port)
            yield port, log
        finally:
            process.terminate()


def test_a_federation_through_tinyproxy(tmp_path: Path) -> None:
    with (
        running_coordinator(tmp_path) as coordinator,
        tinyproxy(tmp_path, coordinator.port, coordinator.enrolment_port) as (port, log),
    ):
        federation_through(f"http://ada:secret@localhost:{port}", coordinator, tmp_path)
        asked = log.read_text()
        assert asked.count(f"CONNECT localhost:{coordinator.enrolment_port} ") == 2
        assert asked.count(f"CONNECT localhost:{coordinator.port} ") >= 2


def test_its_refusals_are_told_as_such(tmp_path: Path) -> None:
    with (
        running_coordinator(tmp_path) as coordinator,
        tinyproxy(tmp_path, coordinator.enrolment_port) as (port, _),
    ):
        home, token = tmp_path / "north", coordinator.register("north")
        join = ("agent", "join", token, "--home", home)
        told = consilium(*join, proxy=f"http://ada:guess@localhost:{port}", status=1)
        assert "PROXY_REFUSED" in told.err
        assert "401 Unauthorized" in told.err
        assert "Check the user and the password" in told.err
        told = consilium(*join, proxy=f"http://localhost:{port}", status=1)
        assert "407 Proxy Authentication Required" in told.err
        assert "It wants a user and a password" in told.err
        right = f"http://ada:secret@localhost:{port}"
        consilium(*join, proxy=right)
        doctor = ("agent", "doctor", "--network-only", "--home", home)
        told = consilium(*doctor, proxy=right, status=1)
        assert "403" in told.out
        assert f"allow CONNECT to localhost:{coordinator.port}" in told.out
