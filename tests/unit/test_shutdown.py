"""How a service ends: by itself if it can, in any case in time, with status 0 and without leaving anyone behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from patience import PATIENCE
from service import alive, eventually

pytestmark = pytest.mark.slow

# Starts a child that starts a child, as a learner would: from a thread. Names both, then does what it is told.
SERVICE = """
import asyncio, subprocess, sys, threading, time
from wire.runtime.shutdown import kill_children, exit_on_sigterm, stop_requested
from wire.runtime.logs import configure_logs

SLEEP = [sys.executable, "-ISc", "import time; time.sleep(3600)"]
NESTED = f"import subprocess; p = subprocess.Popen({SLEEP}); print(p.pid, flush=True); p.wait()"

def begin():
    child = subprocess.Popen(
        [sys.executable, "-ISc", NESTED], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    print(child.pid, int(child.stdout.readline()), flush=True)

async def main():
    await asyncio.to_thread(begin)
    # Said by the loop, hence after what follows has been begun.
    asyncio.get_running_loop().call_soon(lambda: print("ready", flush=True))
    WHAT_FOLLOWS

configure_logs()
exit_on_sigterm()
asyncio.run(main())
kill_children()
"""
ENDS_BY_ITSELF = "await stop_requested(100)"
A_THREAD_NEVER_ENDS = (
    "threading.Thread(target=time.sleep, args=(3600,)).start(); await stop_requested(0.1)"
)
THE_LOOP_IS_HELD_UP = (
    "asyncio.get_running_loop().call_soon(lambda: time.sleep(3600)); await stop_requested(0.1)"
)
NOT_READY_YET = "await asyncio.sleep(3600)"


@contextmanager
def service(what_follows: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A process that is ready, and those below it."""
    script = SERVICE.replace("WHAT_FOLLOWS", what_follows)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    children = [int(word) for word in process.stdout.readline().split()]
    assert process.stdout.readline() == "ready\n"
    try:
        yield process, children
    finally:
        for pid in (process.pid, *children):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("what", "cut_off", "number"),
    [
        (ENDS_BY_ITSELF, False, signal.SIGTERM),
        (ENDS_BY_ITSELF, False, signal.SIGINT),
        (A_THREAD_NEVER_ENDS, True, signal.SIGTERM),
        (THE_LOOP_IS_HELD_UP, True, signal.SIGTERM),
    ],
)
def test_a_service_ends_with_status_0_and_takes_along_what_it_started(
    what: str, cut_off: bool, number: signal.Signals
) -> None:
    with service(what) as (process, children):
        assert len(children) == 2
        assert all(map(alive, children))
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors
        assert ("stopped_unfinished" in errors) == cut_off
        eventually("nobody left behind", lambda: not any(map(alive, children)) or None)


def test_sigterm_before_a_service_listens_to_it_ends_it_at_once() -> None:
    with service(NOT_READY_YET) as (process, _):
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors
