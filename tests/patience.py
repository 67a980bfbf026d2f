"""How long tests wait for events, and how much slower than usual this machine is just now."""

from __future__ import annotations

import os
from pathlib import Path

PATIENCE = 300.0
"""Seconds to wait for an event that has to come: only a test that fails waits so long."""


def slowdown() -> float:
    """How many processes compete for each core, at least 1: so many times longer does everything take."""
    last_minute, _, _, runnable, _ = Path("/proc/loadavg").read_text(encoding="ascii").split()
    competing = max(float(last_minute), int(runnable.partition("/")[0]))
    return max(1.0, competing / (os.cpu_count() or 1))


def limit(seconds: float) -> float:
    """A time limit to give to the system under test: short, so that the test is, but not too short for this machine."""
    return round(seconds * slowdown(), 1)


LEASE_SECONDS = limit(3.0)
"""Of the coordinators in tests; agents send three heartbeats in it."""
LEASE = f"{LEASE_SECONDS:g}s"
