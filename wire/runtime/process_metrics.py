"""Metrics that every process has: version, memory, CPU time, open files."""

from __future__ import annotations

import platform

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from wire import __version__


def register_process_metrics(registry: CollectorRegistry, component: str) -> None:
    """Adds `consilium_build_info` and the client library's `process_…` and `python_…`."""
    build = Gauge(
        "consilium_build_info",
        "Version of the software; always 1.",
        ["version", "python", "component"],
        registry=registry,
    )
    build.labels(__version__, platform.python_version(), component).set(1)
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
