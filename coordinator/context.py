"""What every servicer is given: settings, credentials, store, caches and metrics of one coordinator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from coordinator.metrics.instruments import Metrics
from coordinator.pki.authority import Authority
from coordinator.pki.credentials import Credentials
from coordinator.pki.rotation import Authorities
from coordinator.rounds.change_bus import ChangeBus
from coordinator.rounds.scheduler import RoundScheduler
from coordinator.rounds.task_cache import TaskCache
from coordinator.settings import CoordinatorSettings
from coordinator.store import Store
from coordinator.store.executor import StoreExecutor
from wire.public_file import ExtractorFolder, PublicSetFolder
from wire.receipts import Signer


@dataclass(frozen=True)
class ServiceContext:
    """The coordinator's parts, built once at start-up and handed down."""

    settings: CoordinatorSettings
    credentials: Credentials
    store: Store
    in_store: StoreExecutor
    folder: PublicSetFolder
    extractors: ExtractorFolder
    change_bus: ChangeBus
    scheduler: RoundScheduler
    task_cache: TaskCache
    metrics: Metrics
    clock: Callable[[], datetime]

    @property
    def authority(self) -> Authority:
        """Signs members now; see `authorities` for whom to trust."""
        return self.credentials.authorities.signing

    @property
    def authorities(self) -> Authorities:
        """Whom the consortium trusts."""
        return self.credentials.authorities

    @property
    def signer(self) -> Signer:
        """Signs receipts now."""
        return self.credentials.signer

    @property
    def certificate_lifetime(self) -> timedelta:
        """How long a member's certificate is valid."""
        return timedelta(seconds=self.settings.certificate_lifetime)

    @property
    def lease(self) -> timedelta:
        """How long a silo counts as connected after its last sign of life."""
        return timedelta(seconds=self.settings.lease)
