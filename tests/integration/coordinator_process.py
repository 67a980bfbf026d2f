"""A consortium of real processes started by the real commands: a coordinator, and silos to examine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from patience import PATIENCE
from service import free_ports

from wire.identity.files import IdentityFiles
from wire.identity.identity import Role

SECRETS = ("pass@word", "pass%40word", "guess")
TASK = """
name: trial
public_set: points
labels: [ill, well]
rounds: {max_rounds: 2, deadline: 60s, grace: 5s, quorum: 2}
"""


@dataclass(frozen=True)
class Told:
    """What a command said."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


def consilium(*arguments: object, proxy: str = "", status: int | None = 0) -> Told:
    """Runs a command; `status` is what it must end with, None for whatever it does."""
    done = subprocess.run(
        command(*arguments),
        env=environment(proxy),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    told = Told(done.returncode, done.stdout, done.stderr)
    assert status is None or told.status == status, told
    assert "Traceback" not in told.err, told.err
    assert not any(secret in told.out + told.err for secret in SECRETS)
    return told


def command(*arguments: object) -> list[str]:
    """The command line of `consilium`."""
    start = "from wire.runtime.cli import main; main()"
    return [sys.executable, "-c", start, *map(str, arguments)]


def environment(proxy: str = "") -> dict[str, str]:
    """This process's environment without proxies, and with Consilium's if one is given."""
    kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return {**kept, "CONSILIUM_PROXY": proxy} if proxy else kept


@dataclass(frozen=True)
class RunningCoordinator:
    """A coordinator process, its folder, and its admin's folder, which is elsewhere."""

    home: Path
    admin_home: Path
    host: str
    port: int
    enrolment_port: int

    def run(self, *arguments: object) -> Told:
        """An admin's command."""
        return consilium(*arguments, "--home", self.admin_home)

    def register(self, name: str) -> str:
        """A join token."""
        return str(self.run("silo", "register", name, "--json").json()["join_token"])


@contextlib.contextmanager
def running_coordinator(
    folder: Path, host: str = "localhost", listen: str = "127.0.0.1"
) -> Iterator[RunningCoordinator]:
    """A coordinator that silos know as `host`; its admin dials localhost in any case."""
    home, admin_home = folder / "coordinator", folder / "admin"
    port, enrolment_port, metrics_port = free_ports(3)
    coordinator = RunningCoordinator(home, admin_home, host, port, enrolment_port)
    ports = ("--port", port, "--enrolment-port", enrolment_port, "--metrics-port", metrics_port)
    hosts = ("--host", host, "--host", "localhost")
    consilium("coordinator", "init", "--home", home, "--listen", listen, *hosts, *ports)
    shutil.copytree(home / "admin", admin_home / "admin")
    admin = IdentityFiles.load(admin_home / "admin", Role.ADMIN)
    replace(admin, coordinator_address=f"localhost:{port}").store()
    with background("coordinator", "serve", "--home", home, log=folder / "coordinator.log"):
        await_port(port)
        await_port(enrolment_port)
        yield coordinator


@contextlib.contextmanager
def background(*arguments: object, log: Path, proxy: str = "") -> Iterator[None]:
    """A command that runs until the block ends."""
    with log.open("w") as written:
        process = subprocess.Popen(
            command(*arguments), env=environment(proxy), stdout=written, stderr=written
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def await_port(port: int) -> None:
    """Returns once something listens."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise AssertionError(f"nothing listens on {port}")


def write_data(folder: Path, rows: int, seed: int) -> None:
    """A silo's private rows and silo.yaml: two columns whose sum decides the label."""
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    points = np.random.default_rng(seed).normal(size=(rows, 2))
    lines = [f"{a:.4f},{b:.4f},{'ill' if a + b > 0 else 'well'}" for a, b in points]
    (folder / "data.csv").write_text("\n".join(["a,b,state", *lines]) + "\n")
    (folder / "silo.yaml").write_text(
        "data: {path: data.csv, label: state}\n"
        "model: decision_tree\n"
        "policy: {approve: within_limits, max_rounds: 5}\n"
    )


def write_public(path: Path, rows: int = 200) -> None:
    """The same columns without labels."""
    import numpy as np

    points = np.random.default_rng(0).normal(size=(rows, 2))
    path.write_text("\n".join(["a,b", *(f"{a:.4f},{b:.4f}" for a, b in points)]) + "\n")


def wait_for(text: str, log: Path) -> None:
    """Returns once a process has logged `text`."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if log.exists() and text in log.read_text():
            return
        time.sleep(0.1)
    raise AssertionError(log.read_text())


def federation_through(proxy: str, coordinator: RunningCoordinator, folder: Path) -> None:
    """Two hospitals, `north` and `south`, join, vote and finish a task; both only through `proxy`."""
    homes = [folder / "north", folder / "south"]
    with contextlib.ExitStack() as stack:
        for number, home in enumerate(homes):
            write_data(home, 40, seed=number)
            token = coordinator.register(home.name)
            consilium("agent", "join", token, "--home", home, proxy=proxy)
            log = folder / f"{home.name}.log"
            stack.enter_context(background("agent", "run", "--home", home, log=log, proxy=proxy))
            wait_for("connected", log)
        write_public(folder / "points.csv")
        (folder / "task.yaml").write_text(TASK)
        coordinator.run("public-set", "add", "points", folder / "points.csv")
        coordinator.run("task", "create", "-f", folder / "task.yaml")
        coordinator.run("task", "start", "trial")
        for home in homes:
            wait_for("task_finished", folder / f"{home.name}.log")
    assert "FINISHED" in coordinator.run("task", "show", "trial", "--json").out
    for log in folder.glob("*.log"):
        assert not any(secret in log.read_text() for secret in SECRETS), log
