"""The server's certificate and the authorities it trusts, reloaded when their files change under a running server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import grpc
import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from coordinator.pki.rotation import Authorities, watched_files
from coordinator.settings import CoordinatorHome
from wire.errors import ConfigurationError
from wire.identity.identity import Certificate, read_certificate
from wire.receipts import Signer

log = structlog.get_logger()

_Stamp = tuple[tuple[int, int, int] | None, ...]


def server_files(folder: Path) -> tuple[Path, Path]:
    """Where the server's key and certificate chain lie."""
    return folder / "key.pem", folder / "certificate.pem"


@dataclass(frozen=True)
class ServerLeaf:
    """The server's key and its certificate chain (PEM)."""

    key_pem: bytes = field(repr=False)
    certificate_pem: bytes = field(repr=False)
    certificate: Certificate
    signer: Signer = field(repr=False, compare=False)
    """Signs receipts with this key."""

    @classmethod
    def of(cls, key: bytes, chain: bytes) -> ServerLeaf:
        """Both as PEM; ValueError or TypeError if they cannot be read or do not belong together."""
        certified = x509.load_pem_x509_certificate(chain).public_key()
        if load_pem_private_key(key, None).public_key() != certified:
            raise ValueError("they do not belong together")
        return cls(key, chain, read_certificate(chain), Signer(key, chain))

    @classmethod
    def read(cls, folder: Path) -> ServerLeaf:
        """Reads both files; ConfigurationError if one is missing or they do not belong together."""
        key_path, certificate_path = server_files(folder)
        try:
            return cls.of(key_path.read_bytes(), certificate_path.read_bytes())
        except (OSError, ValueError, TypeError) as error:
            raise ConfigurationError(
                f"The server's key and certificate in {folder} cannot be used: {error}.",
                "Delete both; `consilium coordinator serve` makes new ones.",
            ) from error


@dataclass(frozen=True)
class _Loaded:
    """The files as they were read at one time; never a mixture of two states."""

    authorities: Authorities
    leaf: ServerLeaf

    def configuration(self, *, mutual: bool) -> grpc.ServerCertificateConfiguration:
        """For gRPC, which takes possession of it: make a new one each time."""
        return grpc.ssl_server_certificate_configuration(
            [(self.leaf.key_pem, self.leaf.certificate_pem)],
            self.authorities.bundle_pem if mutual else None,
        )


class Credentials:
    """The last good state of the files. Safe to use from any thread; gRPC asks from its own."""

    def __init__(self, home: CoordinatorHome) -> None:
        self._home = home
        self._reading = threading.Lock()
        self._stamp = self._stamps()
        self._loaded = self._read()
        self._signer = self._loaded.leaf.signer

    @property
    def authorities(self) -> Authorities:
        """Whom the consortium trusts."""
        return self._loaded.authorities

    @property
    def leaf(self) -> ServerLeaf:
        """The certificate that new connections are shown."""
        return self._loaded.leaf

    @property
    def signer(self) -> Signer:
        """Signs receipts. It follows the leaf only once the store knows it: see `adopt_signer`."""
        return self._signer

    def adopt_signer(self, signer: Signer) -> None:
        """Signs with `signer` from now on."""
        self._signer = signer

    def refresh(self) -> None:
        """Reads the files again if they changed; files that cannot be used are logged once and change nothing."""
        with self._reading:
            stamp = self._stamps()
            if stamp == self._stamp:
                return
            # Taken before reading: what changes meanwhile is read the next time.
            self._stamp = stamp
            try:
                self._loaded = self._read()
            except ConfigurationError as error:
                log.warning("credentials_kept", sentence=error.sentence, hint=error.hint)

    def for_port(self, *, mutual: bool) -> grpc.ServerCredentials:
        """Credentials that follow the files; `mutual` asks callers for a certificate of the consortium."""
        shown = self._loaded

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            """Called by gRPC for every new connection: what to show instead, None if nothing changed."""
            nonlocal shown
            self.refresh()
            loaded = self._loaded
            if loaded is shown:
                return None
            shown = loaded
            return loaded.configuration(mutual=mutual)

        # gRPC's documentation allows None, its type stubs forget it.
        fetcher = cast("Callable[[], grpc.ServerCertificateConfiguration]", fetch)
        first = shown.configuration(mutual=mutual)
        return grpc.dynamic_ssl_server_credentials(first, fetcher, mutual)

    def _read(self) -> _Loaded:
        return _Loaded(Authorities.load(self._home.authority), ServerLeaf.read(self._home.server))

    def _stamps(self) -> _Stamp:
        paths = [*watched_files(self._home.authority), *server_files(self._home.server)]
        return tuple(_stamp(path) for path in paths)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
