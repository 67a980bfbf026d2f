"""coordinator.yaml and the folder it lies in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from wire.extractor_file import MAX_BYTES
from wire.identity.naming import Name
from wire.net.address import join_address
from wire.net.metrics_page import MetricsPage, PageAccess
from wire.runtime.configuration import read_yaml
from wire.runtime.permissions import Place
from wire.task.definition import Seconds

Port = Annotated[int, Field(ge=1, le=65535)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Rate(_Frozen):
    """A token bucket: `burst` calls at once, then `per_second`."""

    per_second: Annotated[float, Field(gt=0)]
    burst: Annotated[int, Field(ge=1)]


class Limits(_Frozen):
    """`limits` of coordinator.yaml."""

    calls: Rate = Rate(per_second=100, burst=400)
    """Calls of one member."""
    renewals: Rate = Rate(per_second=1, burst=20)
    """Certificates one member may ask for: each is signed, stored and audited."""
    enrolment: Rate = Rate(per_second=5, burst=20)
    """Calls of one address on the enrolment port; everyone behind one proxy is one address."""
    enrolment_total: Rate = Rate(per_second=50, burst=200)
    """Calls of all addresses together on the enrolment port."""
    calls_at_once: Annotated[int, Field(ge=1)] = 32
    """Calls and streams of one caller under way at once."""
    watches_at_once: Annotated[int, Field(ge=1)] = 3
    """Watch streams of one silo; a further one ends its oldest."""
    silence: Seconds = 60.0
    """How long an upload may pause, and how often a quiet connection is asked for a sign of life."""
    handshake: Seconds = 10.0
    """How long a TLS handshake may take."""
    connections: Annotated[int, Field(ge=2)] = 2048
    """Connections to the main port; half of them may be in their handshake."""
    connections_per_address: Annotated[int, Field(ge=1)] = 256
    """Connections of one address (IPv6: /64) to the main port; everyone behind one proxy is one address."""
    enrolment_connections: Annotated[int, Field(ge=2)] = 64
    """Connections to the enrolment port; each can make gRPC buffer some 20 MiB."""
    enrolment_connections_per_address: Annotated[int, Field(ge=1)] = 16
    """Connections of one address to the enrolment port."""
    extractor_bytes: Annotated[int, Field(ge=1, le=MAX_BYTES)] = 64 << 20
    """Size of an extractor at most."""


class CoordinatorSettings(_Frozen):
    """What an operator may set; `consilium coordinator init` writes it."""

    consortium: Name
    """Trust domain of every identity."""
    hosts: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names and addresses silos reach the coordinator by; the first goes into join tokens."""
    listen: str = "0.0.0.0"  # noqa: S104  silos are elsewhere
    """Address to listen on."""
    port: Port = 7443
    """Port of the mutually authenticated services."""
    enrolment_port: Port = 7444
    """Port where a join token is redeemed."""
    metrics_listen: str = "127.0.0.1"
    """Address of the metrics page."""
    metrics_port: Port = 9464
    """Port of the metrics page."""
    metrics_credentials_file: str = ""
    """Holds a bearer token or `user:password` that the metrics page wants; empty: whoever reaches it may read it."""
    metrics_tls_folder: str = ""
    """Holds `tls.crt` and `tls.key` for the metrics page; empty: plain HTTP."""
    metrics_per_silo: bool = False
    """Whether the metrics page names silos: when each was seen, what it runs, how far it agrees with the others."""
    database: str = ""
    """SQLAlchemy URL; empty means SQLite beside this file."""
    lease: Seconds = 30.0
    """How long a silo counts as connected after its last sign of life."""
    certificate_lifetime: Seconds = 7 * 86400.0
    """How long a member's certificate is valid; it renews itself at two thirds of that."""
    server_certificate_lifetime: Seconds = 30 * 86400.0
    """How long the server's own certificate is valid; it renews itself at two thirds of that."""
    server_certificate_folder: str = ""
    """Where somebody else puts the server's `tls.crt` and `tls.key` and renews them; empty: we make our own."""
    limits: Limits = Limits()
    """How much one caller may ask for; the defaults are far above what an honest one needs."""

    @property
    def address(self) -> str:
        """Where silos find the services."""
        return join_address(self.hosts[0], self.port)

    @property
    def enrolment_address(self) -> str:
        """Where a join token is redeemed."""
        return join_address(self.hosts[0], self.enrolment_port)


@dataclass(frozen=True)
class CoordinatorHome:
    """The coordinator's folder: settings, authority, server certificate, database, public files."""

    root: Path

    @property
    def settings_file(self) -> Path:
        """What the operator edits."""
        return self.root / "coordinator.yaml"

    @property
    def authority(self) -> Path:
        """The consortium's CA; back it up, keep it secret."""
        return self.root / "authority"

    @property
    def server(self) -> Path:
        """The key and certificate the server shows."""
        return self.root / "server"

    def external_certificate_folder(self, settings: CoordinatorSettings) -> Path | None:
        """Where somebody else puts the server's certificate; None if we make it ourselves."""
        folder = settings.server_certificate_folder
        return self.root / folder if folder else None

    def metrics_page(self, settings: CoordinatorSettings) -> MetricsPage:
        """Where metrics are served, and to whom."""
        credentials, tls = settings.metrics_credentials_file, settings.metrics_tls_folder
        access = PageAccess(
            self.root / credentials if credentials else None, self.root / tls if tls else None
        )
        return MetricsPage(settings.metrics_listen, settings.metrics_port, access)

    @property
    def admin(self) -> Path:
        """The first admin's identity."""
        return self.root / "admin"

    @property
    def public_sets(self) -> Path:
        """Content of the public sets, by digest."""
        return self.root / "public-sets"

    @property
    def extractors(self) -> Path:
        """Content of the extractors, by digest."""
        return self.root / "extractors"

    def settings(self) -> CoordinatorSettings:
        """The settings as they stand on disk."""
        return read_yaml(self.settings_file, CoordinatorSettings)

    def database_url(self, settings: CoordinatorSettings) -> str:
        """The configured database, or SQLite in this folder."""
        return settings.database or f"sqlite:///{self.root / 'coordinator.db'}"

    def places(self, database: Path | None) -> tuple[Place, ...]:
        """What we keep here, for our account only; `database` is SQLite's file, wherever it lies."""
        folders = (self.authority, self.server, self.admin, self.public_sets, self.extractors)
        files = [self.settings_file]
        if database is not None:
            files += [database.with_name(database.name + end) for end in ("", "-wal", "-shm")]
        return (Place(self.root, alone=True), *(Place(path) for path in (*folders, *files)))
