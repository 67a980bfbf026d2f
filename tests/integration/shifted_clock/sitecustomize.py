"""Processes started with this folder on their path add the seconds in the file CONSILIUM_TEST_CLOCK to the time.

What is in the file may change while they run. TLS goes by the machine's own clock all the same, and so do gRPC's
deadlines.
"""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import sleep
from types import SimpleNamespace

import grpc.aio
import time_machine

_FILE = Path(os.environ["CONSILIUM_TEST_CLOCK"])


def _follow(clock: time_machine.Coordinates, shift: float) -> None:
    while True:
        sleep(0.05)
        wanted = float(_FILE.read_text(encoding="ascii"))
        if wanted != shift:
            clock.shift(wanted - shift)
            shift = wanted


_shift = float(_FILE.read_text(encoding="ascii"))
_clock = time_machine.travel(datetime.now(UTC) + timedelta(seconds=_shift)).start()
threading.Thread(target=_follow, args=(_clock, _shift), daemon=True).start()
# gRPC's C core takes deadlines in the machine's own time.
grpc.aio._utils.time = SimpleNamespace(time=time_machine.escape_hatch.time.time)
