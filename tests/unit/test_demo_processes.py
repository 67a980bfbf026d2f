"""The demo's processes: none outlives it, and the death of one is told in its own words."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from service import alive

from experiments.demo import die_with_parent
from experiments.demo.processes import Child, DemoFailed, Processes, free_ports, until

pytestmark = pytest.mark.slow

PYTHON = (sys.executable, "-c")
SLEEP = "import time; print('up', flush=True); time.sleep(600)"
# Starts a child of its own and turns a deaf ear to SIGTERM, as does the child.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=False)
print(child.pid, flush=True)
time.sleep(600)
"""


def eventually(condition: Callable[[], bool]) -> None:
    """Waits as long as it takes; pytest's own timeout ends a test that never gets there."""
    while not condition():
        time.sleep(0.02)


async def first_line(child: Child) -> str:
    await until(lambda: b"\n" in child.log.read_bytes())
    return child.log.read_text(encoding="utf-8").splitlines()[0]


def test_leaving_ends_services_and_errands(tmp_path: Path) -> None:
    async def scenario() -> list[int]:
        async with Processes(tmp_path, PYTHON) as processes:
            services = [processes.serve(name, SLEEP) for name in ("coordinator", "silo")]
            errand = asyncio.ensure_future(processes.run("errand", SLEEP))
            for child in services:
                assert await first_line(child) == "up"
            errand.cancel()
            return [child.popen.pid for child in services]

    assert not any(alive(pid) for pid in asyncio.run(scenario()))
    assert not [path for path in Path("/proc").glob("[0-9]*/cwd") if _is(path, tmp_path)]


def _is(link: Path, folder: Path) -> bool:
    try:
        return link.readlink() == folder
    except OSError:
        return False


def test_what_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    async def scenario() -> tuple[int, int]:
        async with Processes(tmp_path, PYTHON, patience=0.1) as processes:
            stubborn = processes.serve("stubborn", STUBBORN)
            return stubborn.popen.pid, int(await first_line(stubborn))

    pid, grandchild = asyncio.run(scenario())
    assert not alive(pid)
    eventually(lambda: not alive(grandchild))


def test_a_service_that_ends_stops_the_work_and_is_quoted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Processes(tmp_path, PYTHON) as processes:
            processes.serve("coordinator", SLEEP)
            processes.serve("leiden", "import sys; sys.exit('no such file: patients.csv')")
            await processes.guard(asyncio.sleep(600))

    with pytest.raises(DemoFailed, match=r"leiden ended with status 1\.\s+no such file: patients"):
        asyncio.run(scenario())


def test_an_errand_that_fails_is_quoted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Processes(tmp_path, PYTHON) as processes:
            await processes.run("fine", "print('well')")
            await processes.run("leiden join", "raise SystemExit('the token has expired')")

    with pytest.raises(DemoFailed, match=r"leiden join ended with status 1\.\s+the token"):
        asyncio.run(scenario())


def test_guarded_work_returns_what_it_found(tmp_path: Path) -> None:
    async def scenario() -> str:
        async with Processes(tmp_path, PYTHON) as processes:
            processes.serve("coordinator", SLEEP)
            return await processes.guard(asyncio.sleep(0, "found"))

    assert asyncio.run(scenario()) == "found"


def test_a_leashed_process_dies_with_its_parent_even_by_kill_9() -> None:
    parent = subprocess.Popen(
        [
            *PYTHON,
            "import os, subprocess, sys, time\n"
            "subprocess.Popen([sys.executable, sys.argv[1], str(os.getpid()), *sys.argv[2:]])\n"
            "time.sleep(600)",
            die_with_parent.__file__,
            *PYTHON,
            "import os, time; print(os.getpid(), flush=True); time.sleep(600)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    with parent.stdout:
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        eventually(lambda: not alive(child))


def test_a_leash_whose_parent_is_gone_starts_nothing() -> None:
    gone = subprocess.run(
        [
            sys.executable,
            die_with_parent.__file__,
            str(os.getpid() + 1_000_000),
            *PYTHON,
            "print('started')",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert gone.stdout == ""


def test_free_ports_differ() -> None:
    ports = free_ports(5)
    assert len(set(ports)) == 5
    assert all(1024 <= port < 65536 for port in ports)
