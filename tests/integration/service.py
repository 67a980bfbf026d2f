"""One `consilium` process of a test, with its log; it dies with pytest, however that ends."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from patience import PATIENCE

T = TypeVar("T")


# Ports below the range the kernel hands out, so that no outgoing connection takes one in between.
_PORTS = range(20_000, 30_000)
_DIE_WITH_PARENT = (
    "import ctypes, os, signal, sys;"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL);"
    "os.execv(sys.argv[1], sys.argv[1:])"
)
CONSILIUM = Path(sys.executable).with_name("consilium")


def eventually(what: str, probe: Callable[[], T | None], seconds: float = PATIENCE) -> T:
    """The first truthy answer of `probe`; fails with `what` if there never is one."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := probe():
            return found
        time.sleep(0.05)
    raise AssertionError(f"never happened: {what}")


def alive(pid: int) -> bool:
    """True while a process runs; one that only waits to be buried does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def free_port() -> int:
    """A port nobody listens on."""
    for port in random.sample(_PORTS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


def free_ports(count: int) -> list[int]:
    """Several of them, all different; no outgoing connection takes one either."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return list(found)


class Service:
    """One `consilium` process with its log; it may be ended and started again."""

    def __init__(self, arguments: list[str], log: Path, environment: dict[str, str]) -> None:
        self._arguments = arguments
        self._environment = os.environ | environment
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it in a process group of its own."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-ISc", _DIE_WITH_PARENT, str(CONSILIUM), *self._arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process itself, not its children."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL to this process alone; its children are the kernel's business."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        """SIGTERM, as an operator would."""
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """The exit status."""
        assert self._process is not None
        return self._process.wait(PATIENCE)

    def ended(self) -> bool:
        """True if it is not running."""
        return self._process is None or self._process.poll() is not None

    def end(self) -> None:
        """Kills whatever is left of its process group."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def text(self) -> str:
        """Everything it has said."""
        return self.log.read_text() if self.log.exists() else ""

    def events(self, name: str) -> list[dict[str, Any]]:
        """Its log lines about one kind of event, oldest first."""
        lines = [json.loads(line) for line in self.text().splitlines() if line.startswith("{")]
        return [line for line in lines if line.get("event") == name]

    def until(self, event: str, **values: object) -> dict[str, Any]:
        """Waits for an event with these values."""

        def probe() -> dict[str, Any] | None:
            found = [e for e in self.events(event) if values.items() <= e.items()]
            if not found and self.ended():
                raise AssertionError(f"{self.log.name} ended before {event}:\n{self.text()}")
            return found[-1] if found else None

        return eventually(f"{event} {values} in {self.log.name}", probe)
