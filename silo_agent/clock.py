"""This machine's clock held against the coordinator's, heartbeat by heartbeat."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import structlog
from prometheus_client import Gauge

log = structlog.get_logger()

TOLERANCE = timedelta(seconds=30)
_RIGHT = timedelta(0)


def skew(sent: datetime, received: datetime, there: datetime) -> timedelta:
    """How far we are ahead (behind: negative) at least, if the coordinator's clock said `there` meanwhile."""
    if there < sent:
        return sent - there
    return received - there if there > received else _RIGHT


class ComparedClock:
    """The local clock, corrected by what the coordinator last said: certificates live by its time."""

    def __init__(self, local: Callable[[], datetime], gauge: Gauge) -> None:
        self.local = local
        self._gauge = gauge
        self._ahead = _RIGHT
        self._told: timedelta | None = None

    def __call__(self) -> datetime:
        """The coordinator's time, as well as it is known here."""
        return self.local() - self._ahead

    def compare(self, sent: datetime, received: datetime, there: datetime | None) -> None:
        """Takes note of the coordinator's time in an answer; warns once of a clock that is wrong."""
        if there is None:
            return
        self._ahead = skew(sent, received, there)
        self._gauge.set(self._ahead.total_seconds())
        if abs(self._ahead) <= TOLERANCE:
            if self._told is not None:
                log.info("clock_right_again")
            self._told = None
        elif self._told is None or abs(self._ahead - self._told) > TOLERANCE:
            self._told = self._ahead
            direction = "ahead of" if self._ahead > _RIGHT else "behind"
            seconds = round(abs(self._ahead).total_seconds())
            log.warning(
                "clock_skew",
                sentence=f"This machine's clock is {seconds} s {direction} the coordinator's.",
                hint="Set it by NTP, e.g. `timedatectl set-ntp true`; if it is right, tell the coordinator's operator.",
            )
