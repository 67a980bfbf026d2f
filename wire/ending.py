"""How a service ends: at SIGTERM what is under way gets some seconds, then the process ends, with status 0.

What is cut off then is as after `kill -9`: nothing is lost, and it is done again after a restart.
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


def ends_early() -> None:
    """Until `stop_asked` is reached, SIGTERM ends the process at once.

    The kernel keeps signals that have no handler from the first process of a container.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


async def stop_asked(drain: float) -> None:
    """Returns at SIGTERM or SIGINT; `drain` seconds later the process ends, whatever its threads still do."""
    asked, loop = asyncio.Event(), asyncio.get_running_loop()

    def hear(*_: object) -> None:
        if not asked.is_set():
            end_within(drain)
            loop.call_soon_threadsafe(asked.set)

    # Not the event loop's own way, which would not start the clock while the loop is held up.
    for number in _SIGNALS:
        signal.signal(number, hear)
    await asked.wait()


def end_within(seconds: float) -> None:
    """Ends this process and all that it started in `seconds`, with status 0, unless it has ended by itself."""
    timer = Timer(seconds, _end, (seconds,))
    timer.daemon = True
    timer.start()


def end_children() -> None:
    """Kills every process that this one and those below it have started."""
    for process in list(_below(os.getpid())):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _end(seconds: float) -> None:
    log.warning("stopped_unfinished", drain_seconds=seconds)
    end_children()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def _below(process: int) -> Iterator[int]:
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, children.read_text(encoding="ascii").split()):
                yield child
                yield from _below(child)
