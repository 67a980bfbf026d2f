"""What every servicer has on its desk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from coordinator.authority import Authority
from coordinator.board import Board
from coordinator.conductor import Conductor
from coordinator.credentials import Credentials
from coordinator.metrics import Metrics
from coordinator.news import News
from coordinator.rotation import Authorities
from coordinator.settings import CoordinatorSettings
from coordinator.store import Store
from coordinator.store_thread import StoreThread
from wire.public_file import ExtractorFolder, PublicSetFolder
from wire.receipts import Signer


@dataclass(frozen=True)
class Desk:
    """The coordinator's parts, built once at start-up and handed down."""

    settings: CoordinatorSettings
    credentials: Credentials
    store: Store
    in_store: StoreThread
    folder: PublicSetFolder
    extractors: ExtractorFolder
    news: News
    conductor: Conductor
    board: Board
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
    def lease(self) -> timedelta:
        """How long a silo counts as connected after its last sign of life."""
        return timedelta(seconds=self.settings.lease)
