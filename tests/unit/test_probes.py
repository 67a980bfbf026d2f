"""Probes: what they say of a process that is well, stopping, gone or somebody else's, and how little they load."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import PATIENCE
from structlog.testing import capture_logs
from typer.testing import CliRunner

from coordinator.probe import WHO as COORDINATOR
from silo_agent.shared.home import SiloHome
from silo_agent.shared.probe import COMPONENT as AGENT
from silo_agent.shared.probe import CONNECTED
from wire.runtime.cli import application
from wire.runtime.health import Health, health_socket, query_health, serve_health

pytestmark = pytest.mark.slow

HEAVY = ("sqlalchemy", "numpy", "coordinator.cli", "coordinator.server", "silo_agent.agent.cli")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home, and sockets of this test alone: a Unix socket's path must be short, pytest's folders are not."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder / "home"
    shutil.rmtree(folder)


@contextmanager
def answering(socket: Path, states: dict[str, Callable[[], bool]]) -> Iterator[None]:
    """A process that tells, played by a thread with an event loop of its own."""
    ready, over = threading.Event(), threading.Event()

    async def tell() -> None:
        async with serve_health(socket, Health(states)):
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(tell(),))
    thread.start()
    assert ready.wait(PATIENCE)
    try:
        yield
    finally:
        over.set()
        thread.join()


def said(*words: object) -> tuple[int, str]:
    """Exit status of a probe, and its one line."""
    arguments = [*map(str, words)]
    outcome = CliRunner().invoke(application(arguments), arguments)
    (line,) = outcome.output.splitlines()
    return outcome.exit_code, line


def test_a_coordinator_serves_is_stopping_or_does_not_answer(home: Path) -> None:
    probe = ("coordinator", "probe", "--home", home)
    serves = True
    socket = health_socket(home, COORDINATOR)
    assert said(*probe) == (1, f"No coordinator of {home} answers on this machine.")
    with answering(socket, {"": lambda: serves}):
        assert said(*probe) == (0, "The coordinator serves.")
        assert said("coordinator", "probe", "--home", home.with_name("other"))[0] == 1
        serves = False
        assert said(*probe) == (1, "The coordinator is stopping.")
    assert not socket.exists()
    assert said(*probe)[0] == 1


def test_an_agent_may_be_well_without_a_coordinator(home: Path) -> None:
    probe = ("agent", "probe", "--home", home)
    states = {"": True, CONNECTED: False}
    assert said(*probe) == (1, f"No agent of {home} answers here.")
    with answering(
        health_socket(home, AGENT), {name: lambda name=name: states[name] for name in states}
    ):
        assert said(*probe) == (0, "The agent runs.")
        assert said(*probe, "--connected") == (
            1,
            "The agent runs; the coordinator is not connected.",
        )
        states[CONNECTED] = True
        assert said(*probe, "--connected")[0] == 0
        states[""] = False
        assert said(*probe) == said(*probe, "--connected") == (1, "The agent is stopping.")


def test_a_trainer_answers_on_the_socket_that_agents_use(home: Path) -> None:
    socket = SiloHome(home).socket
    probe = ("agent", "probe-trainer", "--home", home)
    assert said(*probe) == (1, f"No trainer answers at {socket}.")
    socket.parent.mkdir(parents=True, mode=0o700)
    with answering(socket, {"": lambda: True}):
        assert said(*probe) == (0, "The trainer answers.")


def test_what_a_crash_leaves_behind_is_no_sign_of_life(home: Path) -> None:
    socket = health_socket(home, AGENT)
    script = f"import os, socket; s = socket.socket(socket.AF_UNIX); s.bind({str(socket)!r}); os._exit(0)"
    subprocess.run([sys.executable, "-ISc", script], check=True)
    assert socket.is_socket()
    assert query_health(socket) is None
    with answering(socket, {"": lambda: True}):
        asked_until = time.monotonic() + PATIENCE
        while query_health(socket) is not True:
            assert time.monotonic() < asked_until
        assert query_health(socket, "unheard-of") is None


def test_a_process_that_is_stuck_does_not_answer(home: Path) -> None:
    stuck = threading.Event()

    def state() -> bool:
        stuck.wait(PATIENCE)
        return True

    with answering(health_socket(home, AGENT), {"": state}):
        assert query_health(health_socket(home, AGENT), seconds=0.2) is None
        stuck.set()


@pytest.mark.parametrize("spoilt", ["taken", "nowhere"])
def test_where_no_socket_can_be_made_the_process_goes_on_without(home: Path, spoilt: str) -> None:
    socket = health_socket(home, COORDINATOR)
    if spoilt == "taken":
        socket.mkdir()
    else:
        socket = socket.parent / "nowhere" / socket.name
    with capture_logs() as logs, answering(socket, {"": lambda: True}):
        assert query_health(socket) is None
    assert [line["event"] for line in logs] == ["health_socket_unavailable"]


def test_only_its_own_user_may_ask(home: Path) -> None:
    socket = health_socket(home, COORDINATOR)
    with answering(socket, {"": lambda: True}):
        assert socket.stat().st_mode & 0o777 == 0o600


def test_a_socket_of_somebody_else_is_not_believed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket = health_socket(home, COORDINATOR)
    with answering(socket, {"": lambda: True}):
        monkeypatch.setattr("wire.runtime.health.os.geteuid", lambda: 4711)
        assert query_health(socket) is None


def in_a_process_of_its_own(script: str, *words: str) -> set[str]:
    """What a script prints that has made the command line for `words`."""
    script = f"import sys, typer; from wire.runtime.cli import application; made = application(sys.argv[1:]); {script}"
    command = [sys.executable, "-c", script, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("words", ["coordinator probe", "agent probe", "agent probe-trainer"])
def test_a_probe_is_loaded_alone(words: str) -> None:
    loaded = in_a_process_of_its_own("print(*sys.modules)", *words.split())
    assert "wire.runtime.health" in loaded
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("coordinator", {"init", "serve", "probe"}),
        ("agent", {"join", "relay", "trainer", "approve", "probe", "probe-trainer"}),
        ("agent trainer", {"join", "relay", "trainer", "approve", "probe", "probe-trainer"}),
    ],
)
def test_a_room_still_has_all_its_commands(words: str, wanted: set[str]) -> None:
    room, *_ = words.split()
    script = f"print(*typer.main.get_command(made).commands[{room!r}].commands)"
    assert wanted <= in_a_process_of_its_own(script, *words.split())
