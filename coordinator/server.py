"""Puts the coordinator together and serves it: two gRPC ports, one metrics page, one conductor."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from wsgiref.simple_server import WSGIServer

import grpc
import structlog
from grpc_health.v1 import health, health_pb2_grpc
from prometheus_client import CollectorRegistry, start_http_server

from coordinator.board import Board
from coordinator.caretaker import Caretaker, ensure_leaf
from coordinator.conductor import Conductor
from coordinator.credentials import Credentials
from coordinator.desk import Desk
from coordinator.founding import founded_store
from coordinator.gate import ENROLMENT_TABLE, SERVICE_TABLE, Admitted, Gate
from coordinator.metrics import Metrics
from coordinator.metrics_page import StoreCollector, glance
from coordinator.news import News
from coordinator.probe import WHO
from coordinator.rate_limit import LOG_LINES, Buckets, Turnstile
from coordinator.rotation import Authorities
from coordinator.services.admin import AdminServicer
from coordinator.services.enrolment import EnrolmentServicer
from coordinator.services.identity import IdentityServicer
from coordinator.services.registry import RegistryServicer
from coordinator.services.rounds import RoundsServicer
from coordinator.settings import CoordinatorHome, CoordinatorSettings
from coordinator.store import Store
from coordinator.store_thread import StoreThread
from wire.address import join_address
from wire.channels import STRANGERS, Patience, server_options
from wire.consilium.v1 import (
    admin_pb2_grpc,
    enrolment_pb2_grpc,
    identity_pb2_grpc,
    registry_pb2_grpc,
    rounds_pb2_grpc,
)
from wire.ending import DRAIN_SECONDS, stop_asked
from wire.errors import ConfigurationError
from wire.grpc_log import HandshakeLog, HandshakeRefusal, handshakes_are_logged
from wire.health import Health, socket_of, telling
from wire.identity import Identity
from wire.public_file import ExtractorFolder, PublicSetFolder

log = structlog.get_logger()

# Of the time to drain; the rest is for what is in the store's threads.
_GRACE = 0.8
_UPLOAD_PATIENCE = timedelta(days=1)


async def serve(home: CoordinatorHome, drain: float = DRAIN_SECONDS) -> None:
    """Serves until SIGTERM or SIGINT, then lets calls under way finish within `drain` seconds."""
    settings = home.settings()
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    if not handshakes_are_logged(os.environ):
        log.warning("handshakes_not_counted", hint="GRPC_VERBOSITY hides refused handshakes")
    desk = build_desk(home, settings, metrics)
    registry.register(StoreCollector(partial(glance, desk.store), desk.clock, metrics.tasks.show))
    lines = Buckets(LOG_LINES, time.monotonic)
    with HandshakeLog(lambda reason: _count_handshake(metrics, lines, reason)):
        limits = settings.limits
        main = _server(
            desk, SERVICE_TABLE, Turnstile.for_members(limits, time.monotonic), Patience()
        )
        rounds_pb2_grpc.add_RoundsServiceServicer_to_server(RoundsServicer(desk), main)
        registry_pb2_grpc.add_RegistryServiceServicer_to_server(RegistryServicer(desk), main)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminServicer(desk), main)
        identity_pb2_grpc.add_IdentityServiceServicer_to_server(IdentityServicer(desk), main)
        enrolment = _server(
            desk, ENROLMENT_TABLE, Turnstile.for_strangers(limits, time.monotonic), STRANGERS
        )
        enrolment_pb2_grpc.add_EnrolmentServiceServicer_to_server(
            EnrolmentServicer(desk), enrolment
        )
        _listen(main, settings.listen, settings.port, desk.credentials.for_port(mutual=True))
        _listen(
            enrolment,
            settings.listen,
            settings.enrolment_port,
            desk.credentials.for_port(mutual=False),
        )
        pages = _metrics_page(settings, registry)
        await main.start()
        await enrolment.start()
        background = [
            asyncio.create_task(desk.news.run()),
            asyncio.create_task(desk.conductor.run()),
            asyncio.create_task(_caretaker(home, desk).run()),
        ]
        log.info(
            "coordinator_ready",
            consortium=settings.consortium,
            address=settings.address,
            enrolment=settings.enrolment_address,
            metrics=join_address(settings.metrics_listen, settings.metrics_port),
            authority=desk.authority.fingerprint,
        )
        stopping = asyncio.Event()
        async with telling(socket_of(home.root, WHO), Health({"": lambda: not stopping.is_set()})):
            await stop_asked(drain)
            stopping.set()
            log.info("coordinator_stopping", drain_seconds=drain)
            await _close_doors(desk, main, enrolment, grace=drain * _GRACE)
        for work in background:
            work.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        pages.shutdown()
        desk.in_store.close()
        desk.store.close()


def build_desk(home: CoordinatorHome, settings: CoordinatorSettings, metrics: Metrics) -> Desk:
    """Opens authority, store and folders."""
    clock = utc_now
    ensure_leaf(home, settings, Authorities.load(home.authority), clock())
    credentials = Credentials(home)
    store = founded_store(home, settings)
    signer = credentials.signer
    store.signers.keep(signer.fingerprint, signer.certificate_pem.decode())
    folder, extractors = PublicSetFolder(home.public_sets), ExtractorFolder(home.extractors)
    for uploads in (folder, extractors):
        # Another replica may be receiving a file into the same folder.
        uploads.discard_unfinished(clock() - _UPLOAD_PATIENCE if store.shared else None)
    _check_content(store, folder, extractors)
    in_store = StoreThread(shared=store.shared, metrics=metrics.store)
    news = News(store, in_store)
    return Desk(
        settings=settings,
        credentials=credentials,
        store=store,
        in_store=in_store,
        folder=folder,
        extractors=extractors,
        news=news,
        conductor=Conductor(store, in_store, news, clock, metrics),
        board=Board(store, in_store, news.tasks),
        metrics=metrics,
        clock=clock,
    )


def _check_content(store: Store, folder: PublicSetFolder, extractors: ExtractorFolder) -> None:
    """Says which public files this replica cannot hand out; silos that ask get CONTENT_MISSING."""
    for held in store.public_sets.all():
        if not folder.has(held.digest):
            log.error(
                "public_set_missing",
                name=held.name,
                version=held.version,
                digest=held.digest,
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
    desk: Desk, table: Mapping[str, Admitted], turnstile: Turnstile, patience: Patience
) -> grpc.aio.Server:
    limits = desk.settings.limits

    async def admit(identity: Identity, fingerprint: str) -> None:
        """Asked at every call: whoever is shut out is refused at their very next one."""
        await desk.in_store(desk.store.members.admit, identity.role, identity.name, fingerprint)

    gate = Gate(
        table,
        admit,
        desk.metrics.refused,
        turnstile=turnstile,
        silence=limits.silence,
        answering=desk.metrics.calls.answering,
    )
    patience = replace(patience, handshake_seconds=limits.handshake, silence_seconds=limits.silence)
    server = grpc.aio.server(interceptors=[gate], options=server_options(patience))
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    return server


def _listen(
    server: grpc.aio.Server, host: str, port: int, credentials: grpc.ServerCredentials
) -> None:
    try:
        server.add_secure_port(join_address(host, port), credentials)
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


def _caretaker(home: CoordinatorHome, desk: Desk) -> Caretaker:
    return Caretaker(
        home, desk.settings, desk.credentials, desk.store, desk.in_store, desk.metrics, desk.clock
    )


def _count_handshake(metrics: Metrics, lines: Buckets, reason: HandshakeRefusal) -> None:
    metrics.handshakes_refused.labels(str(reason)).inc()
    if not lines.take(reason):
        log.warning("tls_handshake_refused", reason=str(reason))


async def _close_doors(desk: Desk, *servers: grpc.aio.Server, grace: float) -> None:
    """Takes no more calls, ends the streams that have no end, waits `grace` seconds for the others."""
    closing = asyncio.gather(*(server.stop(grace) for server in servers))
    # The doors first, so that whoever was watching comes back by another one.
    await asyncio.sleep(0)
    desk.news.end()
    await closing
