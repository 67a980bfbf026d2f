"""Opens a TCP connection step by step: DNS, connect, and the tunnel through an HTTP proxy.

A failing step raises a Refusal that names it. Everything here blocks.
"""

from __future__ import annotations

import http.client
import socket
from dataclasses import dataclass

from wire.errors import PROXY_REFUSED, UNREACHABLE, Refusal
from wire.net.address import split_address
from wire.net.proxy import Proxy

# tinyproxy answers a wrong password with 401, a missing one with 407.
_AUTHENTICATION = {401, 407}
_FORBIDDEN = {403, 405}


@dataclass(frozen=True)
class Route:
    """The way to `address`: direct, or through a proxy that resolves the name itself."""

    address: str
    proxy: Proxy | None = None
    timeout: float = 5.0
    """Seconds, for each step."""

    @property
    def host(self) -> str:
        """The name the server's certificate must be for."""
        return split_address(self.address)[0]

    @property
    def first_hop(self) -> str:
        """What is dialled from here, in words: the address, or the proxy."""
        return f"the proxy {self.proxy}" if self.proxy else self.address

    def resolve(self) -> list[str]:
        """The IP addresses of the first hop."""
        host, port = self._first()
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError):
            raise self._unreachable(
                f"the name of {self.first_hop} cannot be resolved here"
            ) from None
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    def dial(self) -> socket.socket:
        """A TCP connection to the first hop."""
        self.resolve()
        try:
            return socket.create_connection(self._first(), self.timeout)
        except ConnectionRefusedError:
            why = f"nothing listens at {self.first_hop} (connection refused)"
        except TimeoutError:
            why = (
                f"no answer from {self.first_hop} within {self.timeout:g} s; "
                "a firewall may drop the packets"
            )
        except OSError as error:
            why = f"{self.first_hop}: {error.strerror or error}"
        raise self._unreachable(why)

    def tunnel(self, connection: socket.socket) -> None:
        """Opens a tunnel to the address through the proxy; does nothing on a direct route."""
        if self.proxy is None:
            return
        try:
            connection.sendall(self._connect_request(self.proxy))
            answer = http.client.HTTPResponse(connection, method="CONNECT")
            answer.begin()
        except TimeoutError:
            raise self._unreachable(
                f"{self.first_hop} did not answer within {self.timeout:g} s"
            ) from None
        except ConnectionError:
            raise self._unreachable(f"{self.first_hop} hung up") from None
        except (http.client.HTTPException, OSError):
            raise self._unreachable(f"{self.first_hop} does not speak HTTP") from None
        if answer.status != http.client.OK:
            raise self._refused(self.proxy, answer)

    def open(self) -> socket.socket:
        """A connection to the address, through the proxy if there is one."""
        connection = self.dial()
        try:
            self.tunnel(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _first(self) -> tuple[str, int]:
        return (self.proxy.host, self.proxy.port) if self.proxy else split_address(self.address)

    def _connect_request(self, proxy: Proxy) -> bytes:
        lines = [f"CONNECT {self.address} HTTP/1.1", f"Host: {self.address}"]
        if proxy.authorization is not None:
            lines.append(f"Proxy-Authorization: {proxy.authorization}")
        return "\r\n".join([*lines, "", ""]).encode("ascii")

    def _unreachable(self, why: str) -> Refusal:
        return Refusal(UNREACHABLE, address=self.address, why=why)

    def _refused(self, proxy: Proxy, answer: http.client.HTTPResponse) -> Refusal:
        if answer.status in _AUTHENTICATION:
            hint = "Check the user and the password in CONSILIUM_PROXY or --proxy."
            if proxy.user is None:
                hint = "It wants a user and a password: http://user:password@… in CONSILIUM_PROXY."
        elif answer.status in _FORBIDDEN:
            hint = f"Ask your IT to allow CONNECT to {self.address} on the proxy."
        else:
            hint = f"Ask your IT whether the proxy can reach {self.address}, and the admin whether the coordinator runs."
        # An unknown server's text goes to a terminal: short, and printable characters only.
        reason = "".join(character for character in answer.reason if character.isprintable())
        return Refusal(
            PROXY_REFUSED,
            proxy=proxy,
            address=self.address,
            why=f"{answer.status} {reason[:80]}".strip(),
            hint=hint,
        )
