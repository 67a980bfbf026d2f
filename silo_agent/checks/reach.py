"""The way to the coordinator: name, connection, proxy, TLS; one connection is carried from check to check."""

from __future__ import annotations

import socket
from datetime import datetime, timedelta

from silo_agent.findings import Check, Finding, ok, warning
from wire.dialling import Route
from wire.errors import SERVER_UNTRUSTED, TLS_REFUSED, Fault, Refusal
from wire.identity import IdentityFiles
from wire.tls_diagnosis import shake_hands

DNS, TCP, PROXY, TLS = "DNS", "TCP", "HTTP proxy", "TLS"
NAMES = (DNS, TCP, PROXY, TLS)

_SERVER_NOTICE = timedelta(days=14)


class Reach:
    """Dials `route` once. `files` is the certificate to show there, None where none is asked for."""

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
        """Why the server, being the right one, did not accept our certificate."""

    def checks(self) -> list[tuple[str, Check]]:
        """Each needs the one before."""
        return list(zip(NAMES, (self._name, self._dial, self._tunnel, self._greet), strict=True))

    def close(self) -> None:
        """Hangs up, wherever the checks ended."""
        if self._connection is not None:
            self._connection.close()

    def _name(self) -> Finding:
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

    def _greet(self) -> Finding:
        try:
            server = shake_hands(
                self._connected(), self._route, self._trusted, self._files, self._wrong_authority
            )
        except Refusal as refusal:
            if self._files is None or not refusal.is_a(TLS_REFUSED):
                raise
            # The server is the right one; what it does not like is told under our identity.
            self.rejected = refusal
            return ok(TLS, f"{self._route.address} shows a certificate of the consortium.")
        left = server.not_after - self._now
        sentence = (
            f"{self._route.address} shows a certificate of the consortium, valid {left.days} days; "
            "nothing intercepts TLS."
        )
        if left < _SERVER_NOTICE:
            return warning(TLS, sentence, "Tell the admin to renew the coordinator's certificate.")
        return ok(TLS, sentence)

    def _connected(self) -> socket.socket:
        if self._connection is None:
            raise AssertionError("the checks run in turn")
        return self._connection
