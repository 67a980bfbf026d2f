"""The gRPC channels of silos and admins, the options of the servers they call, and what a failed call means."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc
import grpc.aio

from wire.chunks import SOCKET_MESSAGE_BYTES
from wire.errors import SERVER_UNTRUSTED, UNREACHABLE, ConsiliumError, Fault, Refusal, from_rpc
from wire.identity.files import IdentityFiles
from wire.net.idempotency import repeatable_methods
from wire.net.proxy import Proxy
from wire.net.tls_diagnosis import diagnose

# Chunks are at most 1 MiB; a list of tasks or silos may be somewhat larger.
MAX_MESSAGE_BYTES = 4 << 20
# Ours are a few hundred bytes, proxies add some more.
MAX_METADATA_BYTES = 16 << 10
_IDENTITY_ONLY = 1

Options = list[tuple[str, str | int]]


@dataclass(frozen=True)
class KeepAlive:
    """How a connection without traffic is kept, and how soon a dead one is noticed."""

    interval_seconds: int = 60
    """Pause between pings; the server tolerates pings 30 s apart and answers faster ones with an error."""
    timeout_seconds: int = 20
    """How long a ping may stay unanswered before the connection counts as dead."""


@dataclass(frozen=True)
class RetryPolicy:
    """How often repeatable calls (`wire.net.idempotency`) are tried while the coordinator is unavailable."""

    attempts: int = 4
    """Tries in all; gRPC allows 2 to 5."""
    first_pause_seconds: float = 0.2
    """Upper bound of the random pause before the second try; doubles with each try."""
    longest_pause_seconds: float = 5.0
    """No pause is longer."""

    def service_config(self) -> str:
        """gRPC's service configuration (JSON)."""
        policy = {
            "maxAttempts": self.attempts,
            "initialBackoff": f"{self.first_pause_seconds}s",
            "maxBackoff": f"{self.longest_pause_seconds}s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": ["UNAVAILABLE"],
        }
        names = [
            {"service": method.containing_service.full_name, "method": method.name}
            for method in repeatable_methods()
        ]
        return json.dumps({"methodConfig": [{"name": names, "retryPolicy": policy}]})


def secure_channel(
    address: str,
    files: IdentityFiles,
    *,
    keepalive: KeepAlive | None = None,
    retries: RetryPolicy | None = None,
    proxy: Proxy | None = None,
) -> grpc.aio.Channel:
    """A channel to the coordinator in which both ends show certificates."""
    credentials = grpc.ssl_channel_credentials(
        root_certificates=files.authorities_pem,
        private_key=files.key_pem,
        certificate_chain=files.certificate_pem,
    )
    options = [
        *_client_options(keepalive or KeepAlive(), proxy),
        ("grpc.service_config", (retries or RetryPolicy()).service_config()),
        ("grpc.enable_retries", 1),
    ]
    return grpc.aio.secure_channel(
        address, credentials, options, compression=grpc.Compression.NoCompression
    )


def enrolment_channel(
    address: str, authorities_pem: bytes, *, proxy: Proxy | None = None
) -> grpc.aio.Channel:
    """A channel to the enrolment port: only the server shows a certificate, of these authorities."""
    credentials = grpc.ssl_channel_credentials(root_certificates=authorities_pem)
    return grpc.aio.secure_channel(address, credentials, _client_options(KeepAlive(), proxy))


def unix_channel(path: Path) -> grpc.aio.Channel:
    """A channel to the trainer's socket; who may connect is decided by the file's permissions."""
    options: Options = [
        ("grpc.enable_http_proxy", 0),
        # A trainer that is started again is on this machine: try every second, not every two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        *_message_sizes(SOCKET_MESSAGE_BYTES),
    ]
    return grpc.aio.insecure_channel(f"unix:{path.absolute()}", options)


@dataclass(frozen=True)
class ConnectionLimits:
    """How long a server waits for a peer, and how many connections and calls it accepts."""

    handshake_seconds: float = 10.0
    """A TLS handshake that takes longer is cut off."""
    silence_seconds: float = 60.0
    """A connection quiet for so long is pinged; without an answer within a third of it, it is closed."""
    idle_seconds: float = 300.0
    """A connection without calls is closed."""
    age_seconds: float | None = None
    """Every connection is closed at this age; None never does."""
    connections: int = 2048
    """Further ones are closed at once."""
    streams: int = 100
    """Calls under way on one connection."""


OPEN_PORT = ConnectionLimits(idle_seconds=20.0, age_seconds=60.0, connections=64, streams=8)
"""For a port open to anyone, where every call is short; a connection can make gRPC buffer some 20 MiB."""


def server_options(limits: ConnectionLimits | None = None) -> Options:
    """Options of the coordinator's servers: tolerate our clients' keepalive, bound what a peer can take up."""
    limits = limits or ConnectionLimits()
    age = limits.age_seconds
    return [
        ("grpc.server_handshake_timeout_ms", round(limits.handshake_seconds * 1000)),
        ("grpc.keepalive_time_ms", round(limits.silence_seconds * 1000)),
        ("grpc.keepalive_timeout_ms", round(limits.silence_seconds * 1000 / 3)),
        # A peer that never answers gRPC's own first ping gets no keepalive ping: this one ends it.
        ("grpc.http2.ping_timeout_ms", round(limits.silence_seconds * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 30_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_connection_idle_ms", round(limits.idle_seconds * 1000)),
        *([("grpc.max_connection_age_ms", round(age * 1000))] if age else []),
        *([("grpc.max_connection_age_grace_ms", round(age * 1000))] if age else []),
        ("grpc.max_allowed_incoming_connections", limits.connections),
        ("grpc.max_concurrent_streams", limits.streams),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        # Until a peer has acknowledged our settings, gRPC takes 16 MiB of headers from it.
        ("grpc.http2.settings_timeout", round(limits.handshake_seconds * 1000)),
        # Nothing of ours is compressed; a message that is gets refused before it is inflated.
        ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ONLY),
        # Two servers on one port would share callers at random; the second must fail to start.
        ("grpc.so_reuseport", 0),
        *_message_sizes(),
    ]


async def translated(
    error: grpc.aio.AioRpcError,
    address: str,
    files: IdentityFiles | None,
    *,
    now: datetime | None = None,
    proxy: Proxy | None = None,
    authorities_pem: bytes | None = None,
    wrong_authority: Fault = SERVER_UNTRUSTED,
) -> ConsiliumError:
    """What a failed call means to a person: the peer's refusal, or why the connection failed.

    The arguments are those of `diagnose`, which is asked when the peer gave no reason.
    """
    refusal = from_rpc(error)
    if refusal is not None:
        return refusal
    code = error.code()
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        found = await asyncio.to_thread(
            diagnose,
            address,
            files,
            now=now or datetime.now(UTC),
            proxy=proxy,
            authorities_pem=authorities_pem,
            wrong_authority=wrong_authority,
        )
        if found is not None:
            return found
    return Refusal(
        UNREACHABLE, address=address, why=_WHY.get(code, f"the call ended as {code.name}")
    )


_WHY = {
    grpc.StatusCode.UNAVAILABLE: "the connection was lost, though a new one now succeeds; try again",
    grpc.StatusCode.DEADLINE_EXCEEDED: "it accepts connections but did not answer in time",
    grpc.StatusCode.UNIMPLEMENTED: "it does not offer this call; it may run another version",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "a message was larger than it accepts",
    grpc.StatusCode.CANCELLED: "the call was cut off",
    # See `coordinator.api.interceptor`: what a Python client makes of an upload that is ended while it still sends.
    grpc.StatusCode.INTERNAL: "it ended the call and its reason was lost on the way; try again",
}


def _client_options(keepalive: KeepAlive, proxy: Proxy | None) -> Options:
    if proxy is not None:
        # gRPC lets a `no_proxy` in the environment go round the proxy it was told to use, unless this is set.
        os.environ["no_grpc_proxy"] = ""  # noqa: SIM112
    return [
        ("grpc.keepalive_time_ms", keepalive.interval_seconds * 1000),
        ("grpc.keepalive_timeout_ms", keepalive.timeout_seconds * 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # gRPC's own default lets a silo wait two minutes after the coordinator is back.
        ("grpc.initial_reconnect_backoff_ms", 500),
        ("grpc.max_reconnect_backoff_ms", 15_000),
        # Only a proxy that was asked for: an http_proxy left in the environment must not decide.
        ("grpc.http_proxy", proxy.url) if proxy else ("grpc.enable_http_proxy", 0),
        *_message_sizes(),
    ]


def _message_sizes(most: int = MAX_MESSAGE_BYTES) -> Options:
    return [("grpc.max_receive_message_length", most), ("grpc.max_send_message_length", most)]
