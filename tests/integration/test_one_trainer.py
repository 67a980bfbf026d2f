"""One trainer per folder: a second is told so and takes nothing; after a kill the next starts at once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from coordinator_process import consilium, write_data
from patience import PATIENCE
from service import Service, eventually

from silo_agent.shared.home import SiloHome
from silo_agent.trainer.isolation import Isolation, Mode
from silo_agent.trainer.server import serve
from wire.errors import ConfigurationError


@pytest.fixture
def home() -> Iterator[SiloHome]:
    # A Unix socket's path must be short; pytest's folders are not.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        write_data(Path(folder), rows=10, seed=1)
        yield SiloHome(Path(folder))


def trainer(home: SiloHome, number: int) -> Service:
    log = home.root / f"trainer-{number}.log"
    return Service(["agent", "trainer", "--home", str(home.root)], log, {})


def answers(home: SiloHome) -> bool:
    return consilium("agent", "probe-trainer", "--home", home.root, status=None).status == 0


def test_a_second_trainer_is_refused_and_the_first_goes_on(home: SiloHome) -> None:
    first, second = trainer(home, 1), trainer(home, 2)
    half_written = home.tasks / "task" / ".ballot.1.part"
    try:
        first.start()
        first.until("trainer_ready")
        half_written.parent.mkdir(parents=True)
        half_written.touch()
        socket = home.socket.stat().st_ino
        second.start()
        assert second.wait() == 1
        assert f"Another trainer is already running with {home.root}." in second.text()
        assert "Stop it first" in second.text()
        assert "Traceback" not in second.text()
        assert home.socket.stat().st_ino == socket
        assert half_written.exists()
        assert answers(home)
    finally:
        first.end()
        second.end()


def test_after_a_kill_the_next_trainer_starts_at_once(home: SiloHome) -> None:
    first, second = trainer(home, 1), trainer(home, 2)
    try:
        first.start()
        first.until("trainer_ready")
        first.kill()
        second.start()
        second.until("trainer_ready")
        assert eventually("an answer", lambda: answers(home))
        assert second.stop() == 0
    finally:
        first.end()
        second.end()


def test_the_lock_is_not_inherited_by_what_a_learner_forks(tmp_path: Path) -> None:
    script = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from wire.runtime.files import lock_until_exit\n"
        "assert lock_until_exit(Path(sys.argv[1]))\n"
        "if os.fork() == 0:\n"
        "    print(os.getpid(), flush=True)\n"
        "    time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    orphan = int(parent.stdout.readline())
    try:
        parent.wait(PATIENCE)
        os.kill(orphan, 0)
        again = "import sys; from pathlib import Path; from wire.runtime.files import lock_until_exit; sys.exit(not lock_until_exit(Path(sys.argv[1])))"
        done = subprocess.run([sys.executable, "-c", again, str(tmp_path / "lock")])
        assert done.returncode == 0
    finally:
        os.kill(orphan, signal.SIGKILL)
        parent.stdout.close()


def test_a_home_whose_path_leaves_no_room_for_the_socket_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"too long: 1[0-9]{2} bytes of 107") as caught:
        asyncio.run(serve(SiloHome(Path("/tmp") / ("h" * 120)), Isolation(Mode.NONE, "")))
    assert "shorter path" in caught.value.hint
