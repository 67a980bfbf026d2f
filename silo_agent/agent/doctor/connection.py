"""Checks of the way to the coordinator: DNS, TCP, proxy, TLS, each going on with the connection of the one before."""

from __future__ import annotations

import socket
from datetime import datetime, timedelta

from wire.errors import SERVER_UNTRUSTED, TLS_REFUSED, Fault, Refusal
from wire.identity.files import IdentityFiles
from wire.net.dialling import Route
from wire.net.tls_diagnosis import tls_handshake
from wire.runtime.findings import Check, Finding, ok, warning

DNS, TCP, PROXY, TLS = "DNS", "TCP", "HTTP proxy", "TLS"
NAMES = (DNS, TCP, PROXY, TLS)

_RENEWAL_NOTICE = timedelta(days=14)


class ConnectionChecks:
    """Dials `route` once. `files` is the client certificate, None where the server asks for none."""

    def __init__(
        self,
        route: Route,
        trusted: bytes,
        files: IdentityFiles | None,
        now: datetime,
        wrong_authority: Fault = SERVER_UNTRUSTED,
    ) -> None:
        self._route = route
        self._trusted = trusted
        self._files = files
        self._now = now
        self._wrong_authority = wrong_authority
        self._connection: socket.socket | None = None
        self.rejected: Refusal | None = None
        """Why a server of the consortium did not accept our certificate."""

    def checks(self) -> list[tuple[str, Check]]:
        """By name, in order; each needs the one before."""
        steps = (self._resolve, self._dial, self._tunnel, self._handshake)
        return list(zip(NAMES, steps, strict=True))

    def close(self) -> None:
        """Closes the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()

    def _resolve(self) -> Finding:
        addresses = self._route.resolve()
        beyond = (
            f"; the proxy resolves {self._route.host} itself"
            if self._route.proxy is not None
            else ""
        )
        return ok(DNS, f"{self._route.first_hop} is at {', '.join(addresses)}{beyond}.")

    def _dial(self) -> Finding:
        self._connection = self._route.dial()
        return ok(TCP, f"{self._route.first_hop} takes connections.")

    def _tunnel(self) -> Finding:
        if self._route.proxy is None:
            return ok(PROXY, "None is set; the coordinator is dialled directly.")
        self._route.tunnel(self._connected())
        who = f" for {self._route.proxy.user}" if self._route.proxy.user is not None else ""
        return ok(PROXY, f"{self._route.proxy} opens a tunnel to {self._route.address}{who}.")

    def _handshake(self) -> Finding:
        try:
            server = tls_handshake(
                self._connected(), self._route, self._trusted, self._files, self._wrong_authority
            )
        except Refusal as refusal:
            if self._files is None or not refusal.is_a(TLS_REFUSED):
                raise
            # The server is the right one; what it rejects is reported by the check of our identity.
            self.rejected = refusal
            return ok(TLS, f"{self._route.address} shows a certificate of the consortium.")
        left = server.not_after - self._now
        sentence = (
            f"{self._route.address} shows a certificate of the consortium, valid {left.days} days; "
            "nothing intercepts TLS."
        )
        if left < _RENEWAL_NOTICE:
            return warning(TLS, sentence, "Tell the admin to renew the coordinator's certificate.")
        return ok(TLS, sentence)

    def _connected(self) -> socket.socket:
        if self._connection is None:
            raise AssertionError("the checks run in order")
        return self._connection
