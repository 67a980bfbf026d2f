"""Puts the coordinator together and serves it: two gRPC ports, one metrics page, one conductor."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from wsgiref.simple_server import WSGIServer

import grpc
import structlog
from grpc_health.v1 import health, health_pb2_grpc
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from coordinator.authority import Authority
from coordinator.board import Board
from coordinator.conductor import Conductor
from coordinator.desk import Desk
from coordinator.gate import ENROLMENT_TABLE, SERVICE_TABLE, Admitted, Gate
from coordinator.metrics import Metrics, SiloCollector
from coordinator.services.admin import AdminServicer
from coordinator.services.enrolment import EnrolmentServicer
from coordinator.services.registry import RegistryServicer
from coordinator.services.rounds import RoundsServicer
from coordinator.settings import CoordinatorHome, CoordinatorSettings
from coordinator.store import Store
from coordinator.store.records import SiloStatus
from coordinator.store_thread import StoreThread
from wire.channels import server_options
from wire.consilium.v1 import (
    admin_pb2_grpc,
    enrolment_pb2_grpc,
    registry_pb2_grpc,
    rounds_pb2_grpc,
)
from wire.errors import CERTIFICATE_SUPERSEDED, SILO_REVOKED, ConfigurationError, Refusal
from wire.grpc_log import HandshakeLog, HandshakeRefusal, handshakes_are_logged
from wire.identity import Identity, Role
from wire.public_file import PublicSetFolder

log = structlog.get_logger()

_DRAIN_SECONDS = 5.0


async def serve(home: CoordinatorHome) -> None:
    """Serves until SIGTERM or SIGINT, then lets calls under way finish."""
    settings = home.settings()
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    metrics = Metrics(registry)
    if not handshakes_are_logged(os.environ):
        log.warning("handshakes_not_counted", hint="GRPC_VERBOSITY hides refused handshakes")
    desk = build_desk(home, settings, metrics)
    registry.register(SiloCollector(desk.store.silos.all, desk.clock))
    with HandshakeLog(lambda reason: _count_handshake(metrics, reason)):
        main = _server(desk, SERVICE_TABLE)
        rounds_pb2_grpc.add_RoundsServiceServicer_to_server(RoundsServicer(desk), main)
        registry_pb2_grpc.add_RegistryServiceServicer_to_server(RegistryServicer(desk), main)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminServicer(desk), main)
        enrolment = _server(desk, ENROLMENT_TABLE)
        enrolment_pb2_grpc.add_EnrolmentServiceServicer_to_server(
            EnrolmentServicer(desk), enrolment
        )
        _listen(main, settings.listen, settings.port, _credentials(home, desk, mutual=True))
        _listen(
            enrolment,
            settings.listen,
            settings.enrolment_port,
            _credentials(home, desk, mutual=False),
        )
        pages = _metrics_page(settings, registry)
        await main.start()
        await enrolment.start()
        conducting = asyncio.create_task(desk.conductor.run())
        log.info(
            "coordinator_ready",
            consortium=settings.consortium,
            address=settings.address,
            enrolment=settings.enrolment_address,
            metrics=f"{settings.metrics_listen}:{settings.metrics_port}",
            authority=desk.authority.fingerprint,
        )
        await _stop_signal()
        log.info("coordinator_stopping", drain_seconds=_DRAIN_SECONDS)
        await asyncio.gather(main.stop(_DRAIN_SECONDS), enrolment.stop(_DRAIN_SECONDS))
        conducting.cancel()
        pages.shutdown()
        desk.in_store.close()
        desk.store.close()


def build_desk(home: CoordinatorHome, settings: CoordinatorSettings, metrics: Metrics) -> Desk:
    """Opens authority, store and folders."""
    authority = Authority.load(home.authority)
    store = Store(home.database_url(settings))
    folder = PublicSetFolder(home.public_sets)
    folder.discard_unfinished()
    in_store = StoreThread()
    clock = utc_now
    conductor = Conductor(store, in_store, clock, metrics)
    return Desk(
        settings=settings,
        authority=authority,
        store=store,
        in_store=in_store,
        folder=folder,
        conductor=conductor,
        board=Board(store, in_store, conductor.tasks),
        metrics=metrics,
        clock=clock,
    )


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


def _server(desk: Desk, table: Mapping[str, Admitted]) -> grpc.aio.Server:
    async def admit(identity: Identity, fingerprint: str) -> None:
        """Asked at every call: a revoked silo is refused at its very next one."""
        if identity.role is not Role.SILO:
            return
        silo = await desk.in_store(desk.store.silos.get, identity.name)
        if silo.status is SiloStatus.REVOKED:
            raise Refusal(SILO_REVOKED, name=identity.name)
        if silo.certificate_fingerprint != fingerprint:
            raise Refusal(CERTIFICATE_SUPERSEDED, name=identity.name)

    def count(code: str, method: str) -> None:
        desk.metrics.refusals.labels(code).inc()

    server = grpc.aio.server(interceptors=[Gate(table, admit, count)], options=server_options())
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    return server


def _listen(
    server: grpc.aio.Server, host: str, port: int, credentials: grpc.ServerCredentials
) -> None:
    try:
        server.add_secure_port(f"{host}:{port}", credentials)
    except RuntimeError:
        raise _unusable(host, port) from None


def _metrics_page(settings: CoordinatorSettings, registry: CollectorRegistry) -> WSGIServer:
    host, port = settings.metrics_listen, settings.metrics_port
    try:
        return start_http_server(port, host, registry=registry)[0]
    except OSError:
        raise _unusable(host, port) from None


def _unusable(host: str, port: int) -> ConfigurationError:
    return ConfigurationError(
        f"Port {port} on {host} cannot be used.",
        "Another program may hold it; choose another port in coordinator.yaml.",
    )


def _credentials(home: CoordinatorHome, desk: Desk, *, mutual: bool) -> grpc.ServerCredentials:
    key, certificate = server_files(home.server)
    return grpc.ssl_server_credentials(
        [(key.read_bytes(), certificate.read_bytes())],
        root_certificates=desk.authority.certificate_pem if mutual else None,
        require_client_auth=mutual,
    )


def server_files(folder: Path) -> tuple[Path, Path]:
    """Where the server's key and certificate chain lie."""
    return folder / "key.pem", folder / "certificate.pem"


def _count_handshake(metrics: Metrics, reason: HandshakeRefusal) -> None:
    metrics.handshakes_refused.labels(str(reason)).inc()
    log.warning("tls_handshake_refused", reason=str(reason))


async def _stop_signal() -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
