"""Network addresses in text form: `host:port`, an IPv6 host in brackets."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from wire.errors import ConfigurationError


def join_address(host: str, port: int) -> str:
    """`host:port`, or `[v6]:port`; the inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`; ConfigurationError for anything else."""
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port is None or parts.netloc != address or parts.username is not None:
        raise ConfigurationError(
            f"{address!r} is not an address.",
            "Write it as host:port, e.g. coordinator.example.org:7443.",
        )
    return host, port


def site_of(host: str) -> str | None:
    """The address, of IPv6 the /64, which is one site's; None if `host` is not an address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))
