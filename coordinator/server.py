"""Builds the coordinator from its settings and serves it: two gRPC ports, a metrics page, the round scheduler."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from wsgiref.simple_server import WSGIServer

import grpc
import structlog
from grpc_health.v1 import health, health_pb2_grpc
from prometheus_client import CollectorRegistry

from coordinator.api.admin import AdminServicer
from coordinator.api.enrolment import EnrolmentServicer
from coordinator.api.handshake_log import HandshakeLog, handshakes_are_logged
from coordinator.api.identity import IdentityServicer
from coordinator.api.interceptor import (
    ENROLMENT_TABLE,
    SERVICE_TABLE,
    AdmissionInterceptor,
    Admitted,
)
from coordinator.api.open_calls import OpenCalls, end_calls_of_outsiders
from coordinator.api.rate_limit import LOG_LINES, Buckets, CallLimiter
from coordinator.api.registry import RegistryServicer
from coordinator.api.rounds import RoundsServicer
from coordinator.api.translation import task_message
from coordinator.context import ServiceContext
from coordinator.front_door.front_door import Doorway, FrontDoor, fitting
from coordinator.front_door.listening import listening_socket, raise_file_limit
from coordinator.front_door.peers import LOOPBACK
from coordinator.front_door.room import Caps
from coordinator.metrics.connections import ENROLMENT_PORT, MAIN_PORT
from coordinator.metrics.handshakes import HandshakeRefusal
from coordinator.metrics.instruments import Metrics
from coordinator.metrics.store import StoreCollector, read_snapshot
from coordinator.pki.authority import Authority
from coordinator.pki.certificate_keeper import ServerCertificateKeeper, ensure_leaf
from coordinator.pki.credentials import Credentials
from coordinator.pki.rotation import Authorities
from coordinator.probe import WHO
from coordinator.rounds.change_bus import ChangeBus, Topic
from coordinator.rounds.scheduler import RoundScheduler
from coordinator.rounds.task_cache import TaskCache
from coordinator.settings import CoordinatorHome, CoordinatorSettings
from coordinator.setup.init import open_existing_store
from coordinator.store import Store
from coordinator.store.actors import Caller
from coordinator.store.executor import StoreExecutor
from wire.consilium.v1 import (
    admin_pb2_grpc,
    enrolment_pb2_grpc,
    identity_pb2_grpc,
    registry_pb2_grpc,
    rounds_pb2_grpc,
)
from wire.errors import ConfigurationError
from wire.net.address import join_address
from wire.net.channels import OPEN_PORT, ConnectionLimits, server_options
from wire.net.metrics_page import MetricsPage, serve_page
from wire.public_file import ExtractorFolder, PublicSetFolder
from wire.runtime.health import Health, health_socket, serve_health
from wire.runtime.shutdown import DRAIN_SECONDS, stop_requested

log = structlog.get_logger()

# Share of the time to drain that calls get; the rest is for rounds being closed and the store's threads.
_CALLS_SHARE = 0.8
_ABANDONED_UPLOAD_AGE = timedelta(days=1)


async def serve(home: CoordinatorHome, drain: float = DRAIN_SECONDS) -> None:
    """Serves until SIGTERM or SIGINT, then lets calls under way finish within `drain` seconds."""
    settings = home.settings()
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    if not handshakes_are_logged(os.environ):
        log.warning("handshakes_not_counted", hint="GRPC_VERBOSITY hides refused handshakes")
    service = build_context(home, settings, metrics)
    registry.register(
        StoreCollector(
            partial(read_snapshot, service.store),
            service.clock,
            metrics.tasks.show,
            per_silo=settings.metrics_per_silo,
        )
    )
    lines, open_calls = Buckets(LOG_LINES, time.monotonic), OpenCalls()
    with HandshakeLog(lambda reason: _count_handshake(metrics, lines, reason)):
        limits = settings.limits
        main = _server(
            service,
            SERVICE_TABLE,
            CallLimiter.for_members(limits, time.monotonic),
            ConnectionLimits(),
            open_calls,
        )
        rounds_pb2_grpc.add_RoundsServiceServicer_to_server(RoundsServicer(service), main)
        registry_pb2_grpc.add_RegistryServiceServicer_to_server(RegistryServicer(service), main)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminServicer(service), main)
        identity_pb2_grpc.add_IdentityServiceServicer_to_server(IdentityServicer(service), main)
        enrolment = _server(
            service,
            ENROLMENT_TABLE,
            CallLimiter.for_enrolment(limits, time.monotonic),
            OPEN_PORT,
            open_calls,
        )
        enrolment_pb2_grpc.add_EnrolmentServiceServicer_to_server(
            EnrolmentServicer(service), enrolment
        )
        doorways = _doorways(settings, service.credentials, main, enrolment)
        pages = _metrics_page(home.metrics_page(settings), registry)
        await main.start()
        await enrolment.start()
        front_door = FrontDoor(limits.handshake, metrics.connections)
        front_door.open(*doorways)
        background = [
            asyncio.create_task(service.change_bus.run()),
            asyncio.create_task(service.scheduler.run()),
            asyncio.create_task(
                end_calls_of_outsiders(
                    open_calls, service.store, service.in_store, service.change_bus
                )
            ),
            asyncio.create_task(_certificate_keeper(home, service).run()),
        ]
        log.info(
            "coordinator_ready",
            consortium=settings.consortium,
            address=settings.address,
            enrolment=settings.enrolment_address,
            metrics=join_address(settings.metrics_listen, settings.metrics_port),
            authority=service.authority.fingerprint,
        )
        stopping = asyncio.Event()
        async with serve_health(
            health_socket(home.root, WHO), Health({"": lambda: not stopping.is_set()})
        ):
            await stop_requested(drain)
            stopping.set()
            log.info("coordinator_stopping", drain_seconds=drain)
            await front_door.shut()
            await _stop_serving(service, main, enrolment, grace=drain * _CALLS_SHARE)
            front_door.close()
        for work in background:
            work.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        pages.shutdown()
        service.in_store.close()
        service.store.close()


def build_context(
    home: CoordinatorHome, settings: CoordinatorSettings, metrics: Metrics
) -> ServiceContext:
    """Opens authority, store and folders, and builds the parts that servicers share."""
    clock = utc_now
    authorities = Authorities.load(home.authority)
    require_own_authority(settings, authorities.signing)
    ensure_leaf(home, settings, authorities, clock())
    credentials = Credentials(home)
    store = open_existing_store(home, settings)
    signer = credentials.signer
    store.signers.keep(signer.fingerprint, signer.certificate_pem.decode())
    folder, extractors = PublicSetFolder(home.public_sets), ExtractorFolder(home.extractors)
    for uploads in (folder, extractors):
        # Another replica may be receiving a file into the same folder.
        uploads.discard_unfinished(clock() - _ABANDONED_UPLOAD_AGE if store.shared else None)
    _check_content(store, folder, extractors)
    in_store = StoreExecutor(shared=store.shared, observer=metrics.store)
    change_bus = ChangeBus(store, in_store)
    return ServiceContext(
        settings=settings,
        credentials=credentials,
        store=store,
        in_store=in_store,
        folder=folder,
        extractors=extractors,
        change_bus=change_bus,
        scheduler=RoundScheduler(store, in_store, change_bus, clock, metrics),
        task_cache=TaskCache(store, in_store, change_bus.tasks, task_message),
        metrics=metrics,
        clock=clock,
    )


def require_own_authority(settings: CoordinatorSettings, authority: Authority) -> None:
    """ConfigurationError if the authority issues identities of another consortium than coordinator.yaml names."""
    if authority.consortium != settings.consortium:
        raise ConfigurationError(
            f"coordinator.yaml names the consortium {settings.consortium}, but the authority is that of "
            f"{authority.consortium}.",
            "Write the authority's name back into coordinator.yaml: a consortium keeps its name.",
        )


def _check_content(store: Store, folder: PublicSetFolder, extractors: ExtractorFolder) -> None:
    """Logs which public files are missing in this replica's folder; silos that ask get CONTENT_MISSING."""
    for public in store.public_sets.all():
        if not folder.has(public.digest):
            log.error(
                "public_set_missing",
                name=public.name,
                version=public.version,
                digest=public.digest,
                hint="Mount the shared folder of public sets, or publish the same file again.",
            )
    for trained in store.extractors.all():
        if not extractors.has(trained.digest):
            log.error(
                "extractor_missing",
                digest=trained.digest,
                public_set=trained.public_set,
                hint="Mount the shared folder of extractors, or publish the same file again.",
            )


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


def _server(
    service: ServiceContext,
    table: Mapping[str, Admitted],
    call_limiter: CallLimiter,
    connection_limits: ConnectionLimits,
    open_calls: OpenCalls,
) -> grpc.aio.Server:
    limits = service.settings.limits

    async def admit(caller: Caller) -> None:
        """Asked at every call, so that a member is refused from the first call after it was shut out."""
        if await service.in_store(service.store.members.admit, caller):
            service.change_bus.announce(Topic.MEMBERS)

    interceptor = AdmissionInterceptor(
        table,
        admit,
        service.metrics.refused,
        consortium=service.settings.consortium,
        open_calls=open_calls,
        call_limiter=call_limiter,
        member_limiter=CallLimiter.for_members(limits, time.monotonic),
        silence=limits.silence,
        answering=service.metrics.calls.measure,
    )
    connection_limits = replace(
        connection_limits,
        handshake_seconds=limits.handshake,
        silence_seconds=limits.silence,
        # The front door decides; gRPC may still hold some that it has closed.
        connections=2 * (limits.connections + limits.enrolment_connections),
    )
    server = grpc.aio.server(interceptors=[interceptor], options=server_options(connection_limits))
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    return server


def _doorways(
    settings: CoordinatorSettings,
    credentials: Credentials,
    main: grpc.aio.Server,
    enrolment: grpc.aio.Server,
) -> tuple[Doorway, Doorway]:
    """Both public ports, bound, and gRPC behind them on the loopback interface."""
    limits, files = settings.limits, raise_file_limit()
    wanted = Caps(limits.connections, limits.connections_per_address)
    open_to_all = Caps(limits.enrolment_connections, limits.enrolment_connections_per_address)
    share = wanted.total / (wanted.total + open_to_all.total)
    return (
        Doorway(
            MAIN_PORT,
            _listening(settings.listen, settings.port),
            main.add_secure_port(f"{LOOPBACK}:0", credentials.for_port(mutual=True)),
            fitting(wanted, share, files),
        ),
        Doorway(
            ENROLMENT_PORT,
            _listening(settings.listen, settings.enrolment_port),
            enrolment.add_secure_port(f"{LOOPBACK}:0", credentials.for_port(mutual=False)),
            fitting(open_to_all, 1 - share, files),
        ),
    )


def _listening(host: str, port: int) -> socket.socket:
    try:
        return listening_socket(host, port)
    except OSError:
        raise _unusable(host, port) from None


def _metrics_page(page: MetricsPage, registry: CollectorRegistry) -> WSGIServer:
    try:
        return serve_page(page, registry)
    except OSError:
        raise _unusable(page.host, page.port) from None


def _unusable(host: str, port: int) -> ConfigurationError:
    return ConfigurationError(
        f"Port {port} on {host} cannot be used.",
        "Another program may hold it; choose another port in coordinator.yaml.",
    )


def _certificate_keeper(home: CoordinatorHome, service: ServiceContext) -> ServerCertificateKeeper:
    return ServerCertificateKeeper(
        home,
        service.settings,
        service.credentials,
        service.store,
        service.in_store,
        service.metrics,
        service.clock,
    )


def _count_handshake(metrics: Metrics, lines: Buckets, reason: HandshakeRefusal) -> None:
    metrics.handshakes_refused.labels(str(reason)).inc()
    if not lines.take(reason):
        log.warning("tls_handshake_refused", reason=str(reason))


async def _stop_serving(service: ServiceContext, *servers: grpc.aio.Server, grace: float) -> None:
    """Takes no more calls, ends the watch streams, waits `grace` seconds for the other calls."""
    stopped = asyncio.gather(*(server.stop(grace) for server in servers))
    # The ports are closed first, so that whoever was watching reconnects to another replica.
    await asyncio.sleep(0)
    service.change_bus.close()
    await stopped
