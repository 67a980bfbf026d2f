"""The HTTP proxy on the way to the coordinator; only from our own setting, never from `http_proxy`."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from wire.errors import ConfigurationError
from wire.net.address import join_address

PROXY_VARIABLE = "CONSILIUM_PROXY"

_FORM = "Write it as http://proxy.example.org:3128, or http://user:password@proxy.example.org:3128 (percent-encode @ : / in the password)."


@dataclass(frozen=True)
class Proxy:
    """A proxy that opens tunnels by HTTP CONNECT. Printing it never shows the password."""

    host: str
    port: int
    user: str | None = None
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, text: str) -> Proxy:
        """Parses `http://[user[:password]@]host:port`; a ConfigurationError never quotes it."""
        try:
            parts = urlsplit(text.strip())
            host, port = parts.hostname, parts.port
        except ValueError:
            raise ConfigurationError("The proxy setting is not a URL.", _FORM) from None
        if parts.scheme != "http":
            raise ConfigurationError(
                "The proxy setting does not begin with http://; only HTTP CONNECT proxies are supported.",
                _FORM,
            )
        if not host or port is None:
            raise ConfigurationError("The proxy setting lacks the host or the port.", _FORM)
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise ConfigurationError("The proxy setting goes on after the port.", _FORM)
        user = None if parts.username is None else unquote(parts.username)
        return cls(host, port, user, unquote(parts.password or ""))

    @property
    def address(self) -> str:
        """`host:port`, for people and for dialling."""
        return join_address(self.host, self.port)

    @property
    def url(self) -> str:
        """The URL with user and password, as gRPC wants it; never print it."""
        if self.user is None:
            return f"http://{self.address}"
        return f"http://{quote(self.user, safe='')}:{quote(self.password, safe='')}@{self.address}"

    @property
    def authorization(self) -> str | None:
        """The value of `Proxy-Authorization`; None without a user."""
        if self.user is None:
            return None
        return f"Basic {base64.b64encode(f'{self.user}:{self.password}'.encode()).decode()}"

    def __str__(self) -> str:
        return self.address


def without_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a child process that must not see the proxy's password."""
    return {name: value for name, value in environment.items() if name != PROXY_VARIABLE}


def read_proxy(setting: str) -> Proxy | None:
    """The proxy in a setting: a URL, or `@FILE` for a file that holds one; None if it is empty."""
    if setting.startswith("@"):
        path = Path(setting[1:])
        try:
            setting = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigurationError(
                f"The proxy file {path} cannot be read: {reason}.", _FORM
            ) from None
        if not setting.strip():
            raise ConfigurationError(f"The proxy file {path} is empty.", _FORM)
    return Proxy.parse(setting) if setting.strip() else None
