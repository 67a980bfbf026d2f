"""Keeps the silo's certificate young: renews it at two thirds of its life, on a channel that stays in use."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta

import structlog

from silo_agent.backoff import Backoff
from silo_agent.coordinator_link import CoordinatorLink
from silo_agent.metrics import AgentMetrics
from wire.errors import ConsiliumError
from wire.identity import Certificate, IdentityFiles, issuer_of
from wire.renewal import due_at, renewed

log = structlog.get_logger()

Wait = Callable[[asyncio.Event, float], Awaitable[None]]

# A suspended machine or a clock that is set meanwhile must not make us sleep through the date.
_LONGEST_NAP_SECONDS = 60.0
_LONGEST_PAUSE_SECONDS = 900.0
_DAY = timedelta(days=1)


async def wait(event: asyncio.Event, seconds: float) -> None:
    """Waits for `event`, but no longer than `seconds`."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


def urgent(certificate: Certificate, now: datetime) -> bool:
    """True in its last day, or in the last fifth of a life shorter than five days."""
    return certificate.not_after - now < min(_DAY, certificate.life / 5)


class Renewal:
    """Renews until cancelled; what fails is told and tried again.

    `clock` gives the coordinator's time, by which certificates live. `spread` gives numbers in [0, 1): they
    keep silos that joined together from renewing together.
    """

    def __init__(
        self,
        link: CoordinatorLink,
        metrics: AgentMetrics,
        clock: Callable[[], datetime],
        spread: Callable[[], float] = random.random,
        wait: Wait = wait,
    ) -> None:
        self._link = link
        self._metrics = metrics
        self._clock = clock
        self._spread = spread
        self._wait = wait
        self._asked = asyncio.Event()
        self._issuer = _issuer(link.identity)
        self._show_expiry()

    def hear(self, authority: str) -> None:
        """Takes note of who signs now: a certificate of any other authority is renewed at once."""
        if authority and authority != self._issuer:
            self._asked.set()

    async def run(self) -> None:
        """One certificate after the other, for ever."""
        while True:
            due = due_at(self._link.identity.certificate, self._spread())
            while not self._asked.is_set() and (left := self._seconds_until(due)) > 0:
                await self._wait(self._asked, min(left, _LONGEST_NAP_SECONDS))
            backoff = Backoff(first=1.0, longest=_LONGEST_PAUSE_SECONDS)
            while not await self._renew():
                left = self._seconds_until(self._link.identity.certificate.not_after)
                # The shorter what is left, the more often we try.
                await self._wait(asyncio.Event(), min(backoff.next(), max(1.0, left / 4)))

    async def _renew(self) -> bool:
        before = self._link.identity
        try:
            fresh = await renewed(before, self._link.renew, self._clock())
        except (ConsiliumError, OSError) as error:
            self._metrics.renewals.labels("failed").inc()
            self._complain(before.certificate, error)
            return False
        await self._link.replace(fresh)
        self._issuer = _issuer(fresh)
        self._asked.clear()
        self._show_expiry()
        self._metrics.renewals.labels("renewed").inc()
        certificate = fresh.certificate
        log.info(
            "certificate_renewed",
            fingerprint=certificate.fingerprint,
            expires=certificate.not_after.isoformat(timespec="seconds"),
        )
        if before.authorities.keys() != fresh.authorities.keys():
            log.warning(
                "authorities_changed",
                sentence="The consortium's authorities changed; the coordinator we know told us so.",
                trusted=sorted(fresh.authorities),
                no_longer=sorted(before.authorities.keys() - fresh.authorities.keys()),
            )
        return True

    def _complain(self, certificate: Certificate, error: ConsiliumError | OSError) -> None:
        tell = log.error if urgent(certificate, self._clock()) else log.warning
        why = error.sentence if isinstance(error, ConsiliumError) else str(error)
        tell(
            "renewal_failed",
            sentence=f"The certificate could not be renewed and expires at "
            f"{certificate.not_after:%Y-%m-%d %H:%M:%S} UTC. {why}",
            hint=error.hint if isinstance(error, ConsiliumError) else "Check the identity folder.",
        )

    def _seconds_until(self, moment: datetime) -> float:
        return (moment - self._clock()).total_seconds()

    def _show_expiry(self) -> None:
        expiry = self._link.identity.certificate.not_after
        self._metrics.certificate_expiry.set(expiry.timestamp())


def _issuer(identity: IdentityFiles) -> str | None:
    return issuer_of(identity.certificate_pem, identity.authorities_pem)
