"""Graceful shutdown: after SIGTERM work in progress has some seconds, then the process exits with status 0.

Work that is interrupted then is as after `kill -9`: nothing is lost, and it is repeated after a restart.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Annotated

import structlog
import typer

log = structlog.get_logger()

Drain = Annotated[
    float, typer.Option(help="Seconds to finish what is under way when told to stop.", min=0)
]
DRAIN_SECONDS = 20.0

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def exit_on_sigterm() -> None:
    """Makes SIGTERM end the process at once, until `stop_requested` is called.

    The kernel does not deliver signals without a handler to the first process of a container.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


async def stop_requested(drain: float) -> None:
    """Returns at SIGTERM or SIGINT; `drain` seconds later the process exits, whatever its threads still do."""
    requested, loop = asyncio.Event(), asyncio.get_running_loop()

    def on_signal(*_: object) -> None:
        if not requested.is_set():
            exit_within(drain)
            loop.call_soon_threadsafe(requested.set)

    # Not `loop.add_signal_handler`, which would not start the timer while the loop is blocked.
    for number in _SIGNALS:
        signal.signal(number, on_signal)
    await requested.wait()


def exit_within(seconds: float) -> None:
    """Ends this process and its descendants after `seconds`, with status 0, unless it has ended by itself."""
    timer = Timer(seconds, _exit, (seconds,))
    timer.daemon = True
    timer.start()


def kill_children() -> None:
    """Kills every descendant of this process."""
    for process in list(_descendants(os.getpid())):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _exit(seconds: float) -> None:
    log.warning("stopped_unfinished", drain_seconds=seconds)
    kill_children()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def _descendants(process: int) -> Iterator[int]:
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, children.read_text(encoding="ascii").split()):
                yield child
                yield from _descendants(child)
