"""Sockets of the public ports, and how many a process may have."""

from __future__ import annotations

import errno
import resource
import socket
from contextlib import suppress

# Of one connection: the client's, ours to gRPC, and gRPC's end of that.
_FILES_OF_A_CONNECTION = 3
# Database, logs, public files, health checks.
_FILES_OF_THE_REST = 256


def raise_file_limit() -> int:
    """Raises the number of files this process may open to what it is allowed; how many that is."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def connections_within(files: int) -> int:
    """Connections that fit into so many open files, at least one."""
    return max(1, (files - _FILES_OF_THE_REST) // _FILES_OF_A_CONNECTION)


def listening_socket(host: str, port: int) -> socket.socket:
    """A bound socket; both wildcards take IPv4 and IPv6 where the machine has both. OSError if it is taken."""
    if host in ("0.0.0.0", "::"):  # noqa: S104  compared, not bound to
        try:
            return _bound("::", port, socket.AF_INET6, dual=True)
        except OSError as error:
            # A machine without IPv6 has IPv4; a port that is taken is taken.
            if error.errno == errno.EADDRINUSE:
                raise
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return _bound(str(address[0]), port, family, dual=False)


def _bound(host: str, port: int, family: int, *, dual: bool) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual else 1)
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made
