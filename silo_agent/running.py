"""Runs the network side: the agent, its metrics page, and in the simple case the trainer beside it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from dataclasses import dataclass
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, start_http_server

from silo_agent.agent import Agent, AgentOptions
from silo_agent.audit import AuditLog
from silo_agent.clock import ComparedClock
from silo_agent.coordinator_link import CoordinatorLink
from silo_agent.downloads import Exchange
from silo_agent.home import SiloHome
from silo_agent.instance import InstanceLock
from silo_agent.metrics import AgentMetrics
from silo_agent.renewal import Renewal
from silo_agent.supervisor import keep_trainer
from silo_agent.together import together
from silo_agent.trainer_link import TrainerLink
from wire.errors import ConfigurationError
from wire.files import discard_unfinished
from wire.identity import IdentityFiles
from wire.proxy import Proxy


@dataclass(frozen=True)
class RunOptions:
    """What `consilium agent run` may be told."""

    with_trainer: bool
    """Start the trainer too; False where it has a container of its own."""
    metrics_port: int = 0
    """Port of the metrics page on loopback; 0 for none."""
    log_level: str = "info"
    lease_patience: float = 60.0
    proxy: Proxy | None = None
    """Through which the coordinator is reached."""


async def run_agent(home: SiloHome, options: RunOptions) -> None:
    """Takes part until SIGTERM or SIGINT; nothing started here outlives it."""
    identity = IdentityFiles.load(home.identity)
    lock = InstanceLock(home.agent)
    discard_unfinished(home.agent)
    audit = AuditLog(home.agent, lambda: datetime.now(UTC))
    home.exchange.mkdir(parents=True, exist_ok=True)
    registry = CollectorRegistry()
    metrics = AgentMetrics(registry)
    if options.metrics_port:
        _serve_metrics(options.metrics_port, registry)
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
    running = asyncio.current_task()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel if running else loop.stop)
    parts = [agent.run(), renewal.run()]
    if options.with_trainer:
        parts.append(keep_trainer(home.root, trainer, options.log_level))
    try:
        await together(*parts)
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await trainer.close()
            await link.close()


def _serve_metrics(port: int, registry: CollectorRegistry) -> None:
    try:
        start_http_server(port, "127.0.0.1", registry=registry)
    except OSError:
        raise ConfigurationError(
            f"Port {port} on 127.0.0.1 cannot be used.",
            "Another program may hold it; choose another --metrics-port.",
        ) from None
