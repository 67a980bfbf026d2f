"""Renews the silo's certificate after two thirds of its lifetime, without interrupting calls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta

import structlog

from silo_agent.agent.backoff import Backoff
from silo_agent.agent.coordinator_client import CoordinatorClient
from silo_agent.agent.metrics.instruments import AgentMetrics
from wire.errors import ConsiliumError
from wire.identity.files import IdentityFiles
from wire.identity.identity import Certificate, issuer_of
from wire.net.renewal import renew_identity, renewal_due_at

log = structlog.get_logger()

Wait = Callable[[asyncio.Event, float], Awaitable[None]]

# The machine may be suspended or its clock set meanwhile, so the date is looked at again now and then.
_LONGEST_SLEEP_SECONDS = 60.0
_LONGEST_PAUSE_SECONDS = 900.0
_DAY = timedelta(days=1)


async def wait(event: asyncio.Event, seconds: float) -> None:
    """Waits for `event`, but no longer than `seconds`."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


def urgent(certificate: Certificate, now: datetime) -> bool:
    """True in its last day, or in the last fifth of a lifetime shorter than five days."""
    return certificate.not_after - now < min(_DAY, certificate.life / 5)


class Renewal:
    """Renews until cancelled; failures are logged and tried again.

    `clock` gives the coordinator's time, by which certificates expire. `jitter` gives numbers in [0, 1), so that
    silos that joined at the same time do not renew at the same time.
    """

    def __init__(
        self,
        coordinator: CoordinatorClient,
        metrics: AgentMetrics,
        clock: Callable[[], datetime],
        jitter: Callable[[], float] = random.random,
        wait: Wait = wait,
    ) -> None:
        self._coordinator = coordinator
        self._metrics = metrics
        self._clock = clock
        self._jitter = jitter
        self._wait = wait
        self._renew_now = asyncio.Event()
        self._issuer = _issuer(coordinator.identity)
        self._show_expiry()

    def update_authority(self, fingerprint: str) -> None:
        """Names the authority that issues certificates now; one of another authority is renewed at once."""
        if fingerprint and fingerprint != self._issuer:
            self._renew_now.set()

    async def run(self) -> None:
        """Renews one certificate after the other, for ever."""
        while True:
            due = renewal_due_at(self._coordinator.identity.certificate, self._jitter())
            while not self._renew_now.is_set() and (left := self._seconds_until(due)) > 0:
                await self._wait(self._renew_now, min(left, _LONGEST_SLEEP_SECONDS))
            backoff = Backoff(first=1.0, longest=_LONGEST_PAUSE_SECONDS)
            while not await self._renew():
                left = self._seconds_until(self._coordinator.identity.certificate.not_after)
                # The less time is left, the more often we try.
                await self._wait(asyncio.Event(), min(backoff.next(), max(1.0, left / 4)))

    async def _renew(self) -> bool:
        before = self._coordinator.identity
        try:
            fresh = await renew_identity(before, self._coordinator.renew, self._clock())
        except (ConsiliumError, OSError) as error:
            self._metrics.renewals.labels("failed").inc()
            self._log_failure(before.certificate, error)
            return False
        await self._coordinator.replace(fresh)
        self._issuer = _issuer(fresh)
        self._renew_now.clear()
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

    def _log_failure(self, certificate: Certificate, error: ConsiliumError | OSError) -> None:
        write = log.error if urgent(certificate, self._clock()) else log.warning
        why = error.sentence if isinstance(error, ConsiliumError) else str(error)
        write(
            "renewal_failed",
            sentence=f"The certificate could not be renewed and expires at "
            f"{certificate.not_after:%Y-%m-%d %H:%M:%S} UTC. {why}",
            hint=error.hint if isinstance(error, ConsiliumError) else "Check the identity folder.",
        )

    def _seconds_until(self, moment: datetime) -> float:
        return (moment - self._clock()).total_seconds()

    def _show_expiry(self) -> None:
        expiry = self._coordinator.identity.certificate.not_after
        self._metrics.certificate_expiry.set(expiry.timestamp())


def _issuer(identity: IdentityFiles) -> str | None:
    return issuer_of(identity.certificate_pem, identity.authorities_pem)
