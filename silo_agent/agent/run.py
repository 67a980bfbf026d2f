"""Runs the network side: the agent, its metrics page, and with `agent run` also the trainer."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog
from prometheus_client import (
    CollectorRegistry,
    Gauge,
    disable_created_metrics,
)

from silo_agent.agent.agent import Agent, AgentOptions
from silo_agent.agent.audit.recorder import AuditLog
from silo_agent.agent.clock import CoordinatorClock
from silo_agent.agent.coordinator_client import CoordinatorClient
from silo_agent.agent.downloads import DownloadFolders, Downloads
from silo_agent.agent.fetch import WantedSets, wanted_folder
from silo_agent.agent.instance import InstanceLock
from silo_agent.agent.metrics.instruments import AgentMetrics
from silo_agent.agent.renewal import Renewal
from silo_agent.agent.supervisor import supervise_trainer
from silo_agent.agent.trainer_client import TrainerClient
from silo_agent.shared.home import SiloHome
from silo_agent.shared.probe import COMPONENT, CONNECTED
from wire.errors import ConfigurationError
from wire.identity.files import IdentityFiles
from wire.net.metrics_page import NO_PAGE, MetricsPage, serve_page
from wire.net.proxy import Proxy
from wire.runtime.files import discard_unfinished
from wire.runtime.health import Health, health_socket, serve_health
from wire.runtime.permissions import log_narrowed, narrow
from wire.runtime.sharing import make_private_folder
from wire.runtime.shutdown import DRAIN_SECONDS, stop_requested
from wire.runtime.task_group import task_group

log = structlog.get_logger()


@dataclass(frozen=True)
class RunOptions:
    """Options of `consilium agent run` and `relay`."""

    with_trainer: bool
    """Start the trainer too; False where it has a container of its own."""
    metrics: MetricsPage = NO_PAGE
    """The metrics page."""
    log_level: str = "info"
    lease_patience: float = 60.0
    drain: float = DRAIN_SECONDS
    """Seconds in which agent and trainer may finish after SIGTERM."""
    proxy: Proxy | None = None
    """HTTP proxy on the way to the coordinator."""


async def run_agent(home: SiloHome, options: RunOptions) -> None:
    """Takes part until SIGTERM or SIGINT, then gives up its lease; nothing started here outlives it."""
    identity = IdentityFiles.load(home.identity)
    log_narrowed(narrow(home.network_side))
    lock = InstanceLock(home.agent)
    discard_unfinished(home.agent)
    audit = AuditLog(home.agent, lambda: datetime.now(UTC))
    make_private_folder(home.exchange)
    # Prometheus does not need `…_created` series, which would nearly double the counters.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    metrics = AgentMetrics(registry)
    if options.metrics.port:
        _serve_metrics(options.metrics, registry)
    coordinator = CoordinatorClient(identity, options.proxy)
    trainer = TrainerClient(home.socket)
    clock = CoordinatorClock(lambda: datetime.now(UTC), metrics.clock_skew)
    renewal = Renewal(coordinator, metrics, clock)
    folders = DownloadFolders.of(home)
    downloads = Downloads(coordinator, folders, audit, metrics)
    wanted = WantedSets(wanted_folder(home), coordinator, folders, downloads)
    agent = Agent(
        coordinator,
        trainer,
        folders,
        audit,
        metrics,
        lock.instance,
        renewal,
        clock,
        AgentOptions(lease_patience=options.lease_patience),
    )
    parts = [agent.run(), renewal.run(), wanted.run()]
    if options.with_trainer:
        parts.append(supervise_trainer(home.root, trainer, options.log_level, options.drain))
    stop = asyncio.create_task(_cancel_on_signal(options.drain, asyncio.current_task()))
    health = Health({"": lambda: not stop.done(), CONNECTED: lambda: _is_set(metrics.connected)})
    try:
        async with serve_health(health_socket(home.root, COMPONENT), health), task_group() as group:
            for part in parts:
                group.create_task(part)
    finally:
        stop.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await trainer.close()
            await coordinator.close()


async def _cancel_on_signal(drain: float, running: asyncio.Task[Any] | None) -> None:
    await stop_requested(drain)
    log.info("agent_stopping", drain_seconds=drain)
    if running is not None:
        running.cancel()


def _is_set(gauge: Gauge) -> bool:
    return any(sample.value for metric in gauge.collect() for sample in metric.samples)


def _serve_metrics(page: MetricsPage, registry: CollectorRegistry) -> None:
    try:
        serve_page(page, registry)
    except OSError:
        raise ConfigurationError(
            f"Port {page.port} on {page.host} cannot be used.",
            "Another program may hold it; choose another --metrics-port or --metrics-listen.",
        ) from None
