"""Runs the network side: the agent, its metrics page, and in the simple case the trainer beside it."""

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
    start_http_server,
)

from silo_agent.agent import Agent, AgentOptions
from silo_agent.audit import AuditLog
from silo_agent.clock import ComparedClock
from silo_agent.coordinator_link import CoordinatorLink
from silo_agent.downloads import Exchange
from silo_agent.home import SiloHome
from silo_agent.instance import InstanceLock
from silo_agent.metrics import AgentMetrics
from silo_agent.probe import CONNECTED, WHO
from silo_agent.renewal import Renewal
from silo_agent.supervisor import keep_trainer
from silo_agent.together import together
from silo_agent.trainer_link import TrainerLink
from wire.ending import DRAIN_SECONDS, stop_asked
from wire.errors import ConfigurationError
from wire.files import discard_unfinished
from wire.health import Health, socket_of, telling
from wire.identity import IdentityFiles
from wire.proxy import Proxy

log = structlog.get_logger()


@dataclass(frozen=True)
class RunOptions:
    """What `consilium agent run` may be told."""

    with_trainer: bool
    """Start the trainer too; False where it has a container of its own."""
    metrics_port: int = 0
    """Port of the metrics page; 0 for none."""
    metrics_listen: str = "127.0.0.1"
    """Address of the metrics page; it has no authentication."""
    log_level: str = "info"
    lease_patience: float = 60.0
    drain: float = DRAIN_SECONDS
    """Seconds to leave in, and for the trainer to finish, when told to stop."""
    proxy: Proxy | None = None
    """Through which the coordinator is reached."""


async def run_agent(home: SiloHome, options: RunOptions) -> None:
    """Takes part until SIGTERM or SIGINT, then hands back its lease; nothing started here outlives it."""
    identity = IdentityFiles.load(home.identity)
    lock = InstanceLock(home.agent)
    discard_unfinished(home.agent)
    audit = AuditLog(home.agent, lambda: datetime.now(UTC))
    home.exchange.mkdir(parents=True, exist_ok=True)
    # When a series began Prometheus knows by itself; telling it would nearly double the counters.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    metrics = AgentMetrics(registry)
    if options.metrics_port:
        _serve_metrics(options.metrics_listen, options.metrics_port, registry)
    link, trainer = CoordinatorLink(identity, options.proxy), TrainerLink(home.socket)
    clock = ComparedClock(lambda: datetime.now(UTC), metrics.clock_skew)
    renewal = Renewal(link, metrics, clock)
    agent = Agent(
        link,
        trainer,
        Exchange.of(home),
        audit,
        metrics,
        lock.instance,
        renewal,
        clock,
        AgentOptions(lease_patience=options.lease_patience),
    )
    parts = [agent.run(), renewal.run()]
    if options.with_trainer:
        parts.append(keep_trainer(home.root, trainer, options.log_level, options.drain))
    stop = asyncio.create_task(_cancel_when_asked(options.drain, asyncio.current_task()))
    health = Health({"": lambda: not stop.done(), CONNECTED: lambda: _is_set(metrics.connected)})
    try:
        async with telling(socket_of(home.root, WHO), health):
            await together(*parts)
    finally:
        stop.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await trainer.close()
            await link.close()


async def _cancel_when_asked(drain: float, running: asyncio.Task[Any] | None) -> None:
    await stop_asked(drain)
    log.info("agent_stopping", drain_seconds=drain)
    if running is not None:
        running.cancel()


def _is_set(gauge: Gauge) -> bool:
    return any(sample.value for metric in gauge.collect() for sample in metric.samples)


def _serve_metrics(host: str, port: int, registry: CollectorRegistry) -> None:
    try:
        start_http_server(port, host, registry=registry)
    except OSError:
        raise ConfigurationError(
            f"Port {port} on {host} cannot be used.",
            "Another program may hold it; choose another --metrics-port or --metrics-listen.",
        ) from None
