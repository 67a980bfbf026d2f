"""Keeps the server's certificate valid: renews it in time, follows a rotation, keeps receipts verifiable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog

from coordinator.metrics.instruments import Metrics
from coordinator.pki.authority import names_hosts
from coordinator.pki.credentials import Credentials, ServerLeaf, server_files
from coordinator.pki.external_certificate import adopt_external_leaf
from coordinator.pki.rotation import Authorities
from coordinator.settings import CoordinatorHome, CoordinatorSettings
from coordinator.store import Store
from coordinator.store.executor import StoreExecutor
from wire.errors import ConfigurationError
from wire.identity.identity import signed_by
from wire.net.renewal import renewal_due_at
from wire.runtime.files import locked

log = structlog.get_logger()

_CHECK_SECONDS = 2.0


def ensure_leaf(
    home: CoordinatorHome, settings: CoordinatorSettings, authorities: Authorities, now: datetime
) -> str | None:
    """Makes a new server certificate if the present one no longer serves; says why, None if it does.

    With `server_certificate_folder` it is never made here but copied from there; ConfigurationError if the one there
    cannot be used.
    """
    external_certificate_folder = home.external_certificate_folder(settings)
    if external_certificate_folder is not None:
        adopted = adopt_external_leaf(home, external_certificate_folder, settings, authorities, now)
        return "a new one was provided" if adopted else None
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
    if now >= renewal_due_at(leaf.certificate):
        return "two thirds of its life were over"
    if not signed_by(leaf.certificate_pem, authorities.serving.certificate_pem):
        return "its authority has been replaced"
    if not names_hosts(leaf.certificate_pem, settings.hosts):
        return "the hosts in coordinator.yaml have changed"
    return None


class ServerCertificateKeeper:
    """Checks every few seconds; what fails is logged and tried again."""

    def __init__(
        self,
        home: CoordinatorHome,
        settings: CoordinatorSettings,
        credentials: Credentials,
        store: Store,
        in_store: StoreExecutor,
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
        """Checks until cancelled."""
        while True:
            try:
                await self.check()
            except Exception:
                log.exception("certificate_check_failed", retry_seconds=_CHECK_SECONDS)
            await asyncio.sleep(_CHECK_SECONDS)

    async def check(self) -> None:
        """Does what is due."""
        credentials = self._credentials
        credentials.refresh()
        self._follow_authorities()
        why = self._renew_leaf()
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
            # A receipt must never name a signer that is not in the store.
            await self._in_store(
                self._store.signers.keep, signer.fingerprint, signer.certificate_pem.decode()
            )
            credentials.adopt_signer(signer)
        self._metrics.server_expiry.set(credentials.leaf.certificate.not_after.timestamp())
        expiry = credentials.authorities.signing.certificate.not_valid_after_utc
        self._metrics.authority_expiry.set(expiry.timestamp())

    def _renew_leaf(self) -> str | None:
        """The result of `ensure_leaf`; a provided certificate that cannot be used is logged once and changes nothing."""
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
