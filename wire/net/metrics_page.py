"""The metrics page of a coordinator or an agent: optionally with TLS and for those who know a secret.

Handshakes and requests run in threads of their own, few at a time and each with a time limit, so that whoever holds
connections open keeps no one else from the page for long.
"""

from __future__ import annotations

import base64
import hmac
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from socket import AF_INET, AF_INET6, SO_REUSEADDR, SOL_SOCKET, socket
from threading import BoundedSemaphore, Thread
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from wire.errors import ConfigurationError
from wire.runtime.secret_option import secret_text

CERTIFICATE, KEY = "tls.crt", "tls.key"
_AT_ONCE: Final = 16
_SECONDS: Final = 10.0
_LEAST_CHARACTERS: Final = 16

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass(frozen=True)
class PageAccess:
    """Who may read a metrics page, and how."""

    credentials_file: Path | None = None
    """Holds a bearer token, or `user:password` for basic authentication; None: whoever reaches the page."""
    tls_folder: Path | None = None
    """Holds `tls.crt` and `tls.key`, read anew when they are replaced; None: plain HTTP."""


@dataclass(frozen=True)
class MetricsPage:
    """Where a metrics page is served."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 for none."""
    access: PageAccess = PageAccess()


NO_PAGE: Final = MetricsPage()


def serve_page(page: MetricsPage, registry: CollectorRegistry) -> WSGIServer:
    """Serves the page in a thread until `shutdown`; OSError if the port cannot be used.

    ConfigurationError for credentials or a certificate that cannot be used.
    """
    application: Application = make_wsgi_app(registry)
    if page.access.credentials_file is not None:
        application = _guarded(application, read_credentials(page.access.credentials_file))
    certificate = None if page.access.tls_folder is None else _Certificate(page.access.tls_folder)

    class Server(_Server):
        address_family = AF_INET6 if ":" in page.host else AF_INET
        tls = certificate

    server = make_server(page.host, page.port, application, Server, _SilentHandler)
    Thread(target=server.serve_forever, daemon=True).start()
    return server


def read_credentials(file: Path) -> str:
    """The secret in a file; ConfigurationError if it is too short to be one."""
    found = secret_text(f"@{file}")
    if len(found) < _LEAST_CHARACTERS or not found.isascii() or not found.isprintable():
        raise ConfigurationError(
            f"{file} holds no credentials of a metrics page: at least {_LEAST_CHARACTERS} characters in one line.",
            "Write a token (`openssl rand -hex 32`) or user:password.",
        )
    return found


def _guarded(application: Application, secret: str) -> Application:
    """The application for those who show the secret; 401 for others."""
    basic = base64.b64encode(secret.encode()).decode()
    accepted = [
        f"Bearer {secret}".encode(),
        *([f"Basic {basic}".encode()] if ":" in secret else []),
    ]
    headers = [("WWW-Authenticate", "Bearer"), ("WWW-Authenticate", 'Basic realm="metrics"')]

    def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        shown = str(environ.get("HTTP_AUTHORIZATION", "")).encode()
        # Every comparison is made, so that time tells nothing.
        matches = [hmac.compare_digest(shown, one) for one in accepted]
        if any(matches):
            return application(environ, start_response)
        start_response("401 Unauthorized", headers)
        return [b"This page wants a bearer token or a password.\n"]

    return guarded


class _SilentHandler(WSGIRequestHandler):
    """Logs nothing: an address and a path per scrape help nobody."""

    timeout = _SECONDS

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  as in the library
        """Nothing."""


class _Server(WSGIServer):
    """A thread per connection, at most a few of them; a further connection is hung up on."""

    daemon_threads = True
    request_queue_size = 64
    tls: _Certificate | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._free = BoundedSemaphore(_AT_ONCE)
        super().__init__(*arguments, **options)

    def server_bind(self) -> None:
        """As the library's, without asking DNS for a name that nobody uses."""
        self.socket.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "metrics", self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hands a connection to a thread of its own."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        Thread(target=self._answer, args=(request, client_address), daemon=True).start()

    def _answer(self, request: socket, client_address: Any) -> None:
        connection = request
        try:
            # Whoever hangs up, or speaks no TLS, needs no line in the log.
            with suppress(OSError):
                request.settimeout(_SECONDS)
                if self.tls is not None:
                    connection = self.tls.context().wrap_socket(request, server_side=True)
                self.finish_request(connection, client_address)
        finally:
            self.shutdown_request(connection)
            self._free.release()


class _Certificate:
    """The page's certificate, read again when its files change."""

    def __init__(self, folder: Path) -> None:
        self._files = folder / CERTIFICATE, folder / KEY
        self._stamps: tuple[int, ...] = ()
        self._context = self._read()

    def context(self) -> ssl.SSLContext:
        """For the next connection; a certificate that is being replaced leaves the one before in use."""
        with suppress(ConfigurationError):
            if self._stamp() != self._stamps:
                self._context = self._read()
        return self._context

    def _stamp(self) -> tuple[int, ...]:
        try:
            return tuple(file.stat().st_mtime_ns for file in self._files)
        except OSError:
            return ()

    def _read(self) -> ssl.SSLContext:
        stamps = self._stamp()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(*self._files)
        except (OSError, ssl.SSLError):
            raise ConfigurationError(
                f"The metrics page cannot use {self._files[0]} and {self._files[1]}.",
                "Put a certificate and its unencrypted key there, both PEM.",
            ) from None
        self._stamps = stamps
        return context
