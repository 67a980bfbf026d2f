"""Whose connection gRPC sees: behind the front door every peer is a port of this machine.

One table per process, because gRPC names a peer by its port alone and a port of this machine has one owner. An entry
stays until its port is used again, so that the last call of a connection still has its name; ports bound the table.
"""

from __future__ import annotations

from typing import Final

LOOPBACK: Final = "127.0.0.1"

_clients: dict[str, str] = {}


def remember(port: int, host: str) -> None:
    """Notes that what comes from this local port is of `host`; called before its first byte is passed on."""
    kind, name = ("ipv6", f"[{host}]") if ":" in host else ("ipv4", host)
    _clients[f"ipv4:{LOOPBACK}:{port}"] = f"{kind}:{name}:0"


def client_of(peer: str) -> str:
    """gRPC's name of the client behind a peer; the peer itself if it came by no front door."""
    return _clients.get(peer, peer)
