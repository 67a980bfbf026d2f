"""Metrics: documented to the last one, with bounded labels."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from coordinator.metrics import Metrics
from silo_agent.metrics import AgentMetrics

ROW = re.compile(r"^\| `(consilium_\w+)` \| (\w+) \| ([^|]*)\|", re.MULTILINE)


def documented(section: str) -> dict[str, tuple[str, set[str]]]:
    text = Path("docs/metrics.md").read_text().partition(f"## {section}")[2].partition("\n## ")[0]
    return {
        name: (kind, {label.strip() for label in labels.split(",") if label.strip()})
        for name, kind, labels in ROW.findall(text)
    }


def declared(registry: CollectorRegistry) -> dict[str, tuple[str, set[str]]]:
    found = {}
    for collector in registry._collector_to_names:
        name, kind = collector._name, collector._type
        found[f"{name}_total" if kind == "counter" else name] = (kind, set(collector._labelnames))
    return found


@pytest.mark.parametrize(
    ("section", "instruments"), [("Coordinator", Metrics), ("Agent", AgentMetrics)]
)
def test_the_documentation_and_the_instruments_agree(section: str, instruments: type) -> None:
    registry = CollectorRegistry()
    instruments(registry)
    assert declared(registry) == documented(section)


@pytest.mark.parametrize("instruments", [Metrics, AgentMetrics])
def test_no_label_is_unbounded(instruments: type) -> None:
    registry = CollectorRegistry()
    instruments(registry)
    bounded = {"version", "python", "component", "task", "silo", "code", "reason", "by"}
    bounded |= {"outcome", "direction", "kind"}
    for name, (_, labels) in declared(registry).items():
        assert labels <= bounded, name
