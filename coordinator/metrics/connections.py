"""Connections of the public ports: how many there are, and why some were closed before they became calls."""

from __future__ import annotations

from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge


class Turned(StrEnum):
    """Why the front door closed a connection, as a metric's label."""

    ADDRESS_FULL = "address_full"
    """Its address holds as many open connections as one may."""
    PORT_FULL = "port_full"
    """The port has as many as it takes, and no address holds many more than this one."""
    CROWDED_OUT = "crowded_out"
    """It made room for a newer connection."""
    HANDSHAKE_TIMEOUT = "handshake_timeout"
    """Its handshake was not done in time."""


MAIN_PORT = "main"
ENROLMENT_PORT = "enrolment"


class ConnectionMetrics:
    """Counted by port (main, enrolment). Safe to use from any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._open = Gauge(
            "consilium_connections_open",
            "Connections to a public port, those in their handshake included.",
            ["port"],
            registry=registry,
        )
        self._refused = Counter(
            "consilium_connections_refused",
            "Connections closed because there were too many or their handshake took too long.",
            ["port", "reason"],
            registry=registry,
        )
        for port in (MAIN_PORT, ENROLMENT_PORT):
            self._open.labels(port)
            for reason in Turned:
                self._refused.labels(port, str(reason))

    def open(self, port: str, count: int) -> None:
        """Shows how many connections a port has."""
        self._open.labels(port).set(count)

    def refused(self, port: str, reason: Turned) -> None:
        """Counts a connection that was closed."""
        self._refused.labels(port, str(reason)).inc()
