"""Looks after the server's certificate: renews it in time, follows a rotation, keeps receipts verifiable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog

from coordinator.authority import names_hosts
from coordinator.brought_leaf import take_leaf
from coordinator.credentials import Credentials, ServerLeaf, server_files
from coordinator.metrics import Metrics
from coordinator.rotation import Authorities
from coordinator.settings import CoordinatorHome, CoordinatorSettings
from coordinator.store import Store
from coordinator.store_thread import StoreThread
from wire.errors import ConfigurationError
from wire.files import locked
from wire.identity import signed_by
from wire.renewal import due_at

log = structlog.get_logger()

_LOOK_SECONDS = 2.0


def ensure_leaf(
    home: CoordinatorHome, settings: CoordinatorSettings, authorities: Authorities, now: datetime
) -> str | None:
    """Makes a new server certificate if the present one no longer serves; says why, None if it does.

    With `server_certificate_folder` it is never made here but taken from there; ConfigurationError if what lies
    there cannot be used.
    """
    brought = home.brought(settings)
    if brought is not None:
        taken = take_leaf(home, brought, settings, authorities, now)
        return "another one was brought" if taken else None
    if _unfit(home, settings, authorities, now) is None:
        return None
    # Replicas may share the folder; a key of one beside the certificate of another would serve nobody.
    with locked(home.server):
        why = _unfit(home, settings, authorities, now)
        if why is not None:
            lifetime = timedelta(seconds=settings.server_certificate_lifetime)
            issued = authorities.serving.issue_server(list(settings.hosts), lifetime, now)
            issued.store(*server_files(home.server))
        return why


def _unfit(
    home: CoordinatorHome, settings: CoordinatorSettings, authorities: Authorities, now: datetime
) -> str | None:
    try:
        leaf = ServerLeaf.read(home.server)
    except ConfigurationError:
        # Missing, or a crash between its two files: whatever it was, a new one is as good.
        return "there was none that could be used"
    if now >= due_at(leaf.certificate):
        return "two thirds of its life were over"
    if not signed_by(leaf.certificate_pem, authorities.serving.certificate_pem):
        return "its authority has been replaced"
    if not names_hosts(leaf.certificate_pem, settings.hosts):
        return "the hosts in coordinator.yaml have changed"
    return None


class Caretaker:
    """Looks every few seconds; what fails is logged and tried again."""

    def __init__(
        self,
        home: CoordinatorHome,
        settings: CoordinatorSettings,
        credentials: Credentials,
        store: Store,
        in_store: StoreThread,
        metrics: Metrics,
        clock: Callable[[], datetime],
    ) -> None:
        self._home = home
        self._settings = settings
        self._credentials = credentials
        self._store = store
        self._in_store = in_store
        self._metrics = metrics
        self._clock = clock
        self._authorities = credentials.authorities
        self._unusable = ""

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("caretaking_failed", retry_seconds=_LOOK_SECONDS)
            await asyncio.sleep(_LOOK_SECONDS)

    async def look(self) -> None:
        """Does what is due."""
        credentials = self._credentials
        credentials.refresh()
        self._follow_authorities()
        why = self._look_at_leaf()
        if why is not None:
            credentials.refresh()
            self._metrics.renewals.labels("server").inc()
            log.info(
                "server_certificate_renewed",
                why=why,
                fingerprint=credentials.leaf.certificate.fingerprint,
                expires=credentials.leaf.certificate.not_after.isoformat(timespec="seconds"),
            )
        signer = credentials.leaf.signer
        if signer.fingerprint != credentials.signer.fingerprint:
            # A receipt must never name a signer that the store does not know.
            await self._in_store(
                self._store.signers.keep, signer.fingerprint, signer.certificate_pem.decode()
            )
            credentials.adopt_signer(signer)
        self._metrics.server_expiry.set(credentials.leaf.certificate.not_after.timestamp())
        expiry = credentials.authorities.signing.certificate.not_valid_after_utc
        self._metrics.authority_expiry.set(expiry.timestamp())

    def _look_at_leaf(self) -> str | None:
        """What `ensure_leaf` says; what was brought and cannot be used is told once and changes nothing."""
        try:
            why = ensure_leaf(
                self._home, self._settings, self._credentials.authorities, self._clock()
            )
        except ConfigurationError as error:
            if error.sentence != self._unusable:
                log.error("server_certificate_refused", sentence=error.sentence, hint=error.hint)
            self._unusable = error.sentence
            return None
        self._unusable = ""
        return why

    def _follow_authorities(self) -> None:
        now = self._credentials.authorities
        if now.bundle_pem != self._authorities.bundle_pem:
            log.warning(
                "authorities_changed",
                signing=now.signing.fingerprint,
                previous=now.previous.fingerprint if now.previous else "",
            )
            self._authorities = now
