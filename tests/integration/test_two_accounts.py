"""Agent and trainer as two operating-system accounts with one group in common, as images and charts run them."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest
from coordinator_process import (
    RunningCoordinator,
    command,
    environment,
    running_coordinator,
    wait_for,
    write_data,
    write_public,
)
from patience import PATIENCE
from service import eventually

from silo_agent.shared.home import SiloHome

REPOSITORY = Path(__file__).parents[2]
TRAINER, AGENT, EXCHANGE = 10001, 10002, 10003
TASK = """
name: trial
public_set: points
labels: [ill, well]
rounds: {max_rounds: 1, deadline: 600s, grace: 5s, quorum: 1}
"""


def give(path: Path, user: int, mode: int) -> None:
    os.chown(path, user, user)
    path.chmod(mode)


@pytest.fixture
def home() -> Iterator[SiloHome]:
    """Laid out as the images have it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        root = Path(folder)
        root.chmod(0o755)
        write_data(root, rows=40, seed=1)
        for name in ("data.csv", "silo.yaml"):
            give(root / name, TRAINER, 0o600)
        for name, user in (
            *(("identity", AGENT), ("agent", AGENT)),
            *(("trainer", TRAINER), ("witness", TRAINER)),
        ):
            (root / name).mkdir()
            give(root / name, user, 0o700)
        exchange = root / "exchange"
        exchange.mkdir()
        os.chown(exchange, 0, EXCHANGE)
        exchange.chmod(0o3770)
        yield SiloHome(root)


@cache
def interpreter() -> str | None:
    """A Python of this version that the accounts may run; the one of the tests may lie in somebody's home."""
    version = f"python3.{sys.version_info.minor}"
    for found in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        if may(AGENT, lambda found=found: os.execv(found, [found, "-c", "import grpc"])):
            return found
    return None


@contextmanager
def running(user: int, log: Path, *arguments: object) -> Iterator[None]:
    """A command as one of the accounts, until the block ends."""
    with log.open("w") as written:
        process = subprocess.Popen(
            [str(interpreter()), *command(*arguments)[1:]],
            env=environment() | {"HOME": "/nonexistent"},
            stdout=written,
            stderr=written,
            user=user,
            group=user,
            extra_groups=[EXCHANGE],
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)


def may(user: int, action: Callable[[], object], groups: tuple[int, ...] = (EXCHANGE,)) -> bool:
    """Whether an account can do something."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups)
            os.setgid(user)
            os.setuid(user)
            action()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def connect(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dialling:
        dialling.connect(str(path))


def finished(coordinator: RunningCoordinator) -> bool:
    return "FINISHED" in coordinator.run("task", "show", "trial", "--json").out


@pytest.fixture(autouse=True)
def _two_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may become two accounts")
    packages = [str(REPOSITORY), *(path for path in sys.path if path.endswith("site-packages"))]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(packages))
    if interpreter() is None:
        pytest.skip("no Python here that other accounts may run")


def test_they_vote_together_and_neither_reads_what_is_the_others(
    home: SiloHome, tmp_path: Path
) -> None:
    relay, train = tmp_path / "agent.log", tmp_path / "trainer.log"
    with running_coordinator(tmp_path) as coordinator, ExitStack() as processes:
        token = coordinator.register("north")
        joining = running(AGENT, tmp_path / "join.log", "agent", "join", token, "--home", home.root)
        with joining:
            eventually("the silo has joined", lambda: any(home.identity.glob("certificate*")))
        processes.enter_context(running(TRAINER, train, "agent", "trainer", "--home", home.root))
        wait_for("trainer_ready", train)
        processes.enter_context(running(AGENT, relay, "agent", "relay", "--home", home.root))
        wait_for("connected", relay)
        write_public(tmp_path / "points.csv")
        (tmp_path / "task.yaml").write_text(TASK)
        coordinator.run("public-set", "add", "points", tmp_path / "points.csv")
        coordinator.run("task", "create", "-f", tmp_path / "task.yaml")
        coordinator.run("task", "start", "trial")
        eventually("the task is finished", lambda: finished(coordinator))
        (public,) = home.public_sets.glob("[0-9a-f]*")
        mode = stat.S_IMODE(home.socket.stat().st_mode)
        assert (mode, home.socket.stat().st_uid) == (0o660, TRAINER)
        # The trainer reads a download and cannot change it; the agent cannot put another socket in place of the trainer's.
        assert may(TRAINER, public.read_bytes)
        assert not may(TRAINER, lambda: public.open("r+b"))
        assert not may(AGENT, home.socket.unlink)
        assert not may(AGENT, lambda: home.socket.rename(home.socket.with_name("x")))
        # What is private stays so.
        for secret in (home.settings_file, home.root / "data.csv", home.ledger, home.approvals):
            assert not may(AGENT, secret.read_bytes), secret
        assert not may(AGENT, lambda: list(home.tasks.iterdir()))
        assert not may(TRAINER, lambda: list(home.identity.iterdir()))
        assert not may(TRAINER, lambda: list(home.agent.iterdir()))
        # A third account has no part in it.
        assert may(AGENT, lambda: connect(home.socket))
        assert not may(10009, lambda: connect(home.socket), groups=())
