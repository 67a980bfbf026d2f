"""Compares this machine's clock with the coordinator's at every heartbeat."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import structlog
from prometheus_client import Gauge

log = structlog.get_logger()

TOLERANCE = timedelta(seconds=30)
_NO_SKEW = timedelta(0)


def skew(sent: datetime, received: datetime, coordinator_time: datetime) -> timedelta:
    """The least by which the local clock is ahead (negative: behind), given the time in a reply.

    `sent` and `received` are local times; `coordinator_time` was read between them.
    """
    if coordinator_time < sent:
        return sent - coordinator_time
    return received - coordinator_time if coordinator_time > received else _NO_SKEW


class CoordinatorClock:
    """The coordinator's time, by which certificates expire: the local clock corrected at every heartbeat."""

    def __init__(self, local: Callable[[], datetime], gauge: Gauge) -> None:
        self.local = local
        self._gauge = gauge
        self._ahead = _NO_SKEW
        self._logged: timedelta | None = None

    def __call__(self) -> datetime:
        """The coordinator's time, as of the last comparison."""
        return self.local() - self._ahead

    def compare(
        self, sent: datetime, received: datetime, coordinator_time: datetime | None
    ) -> None:
        """Updates the correction from the time in a reply; logs a skew once, and again when it changes."""
        if coordinator_time is None:
            return
        self._ahead = skew(sent, received, coordinator_time)
        self._gauge.set(self._ahead.total_seconds())
        if abs(self._ahead) <= TOLERANCE:
            if self._logged is not None:
                log.info("clock_skew_resolved")
            self._logged = None
        elif self._logged is None or abs(self._ahead - self._logged) > TOLERANCE:
            self._logged = self._ahead
            direction = "ahead of" if self._ahead > _NO_SKEW else "behind"
            seconds = round(abs(self._ahead).total_seconds())
            log.warning(
                "clock_skew",
                sentence=f"This machine's clock is {seconds} s {direction} the coordinator's.",
                hint="Set it by NTP, e.g. `timedatectl set-ntp true`; if it is right, tell the coordinator's operator.",
            )
