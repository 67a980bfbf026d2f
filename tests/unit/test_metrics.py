"""Metrics: documented to the last one, with bounded labels."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from coordinator.metrics import Metrics, SiloCollector
from silo_agent.metrics import AgentMetrics
from wire.consilium.v1 import trainer_pb2

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
        # Our own collectors describe families; the library's instruments are families themselves.
        families = [collector] if hasattr(collector, "_labelnames") else collector.describe()
        for family in families:
            name = getattr(family, "_name", None) or family.name
            kind = getattr(family, "_type", None) or family.type
            found[f"{name}_total" if kind == "counter" else name] = (kind, set(family._labelnames))
    return found


def coordinator_registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Metrics(registry)
    registry.register(SiloCollector(list, lambda: datetime(2026, 1, 1, tzinfo=UTC)))
    return registry


def agent_registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    AgentMetrics(registry)
    return registry


REGISTRIES = [("Coordinator", coordinator_registry()), ("Agent", agent_registry())]


@pytest.mark.parametrize(("section", "registry"), REGISTRIES)
def test_the_documentation_and_the_instruments_agree(
    section: str, registry: CollectorRegistry
) -> None:
    assert declared(registry) == documented(section)


@pytest.mark.parametrize(("section", "registry"), REGISTRIES)
def test_no_label_is_unbounded(section: str, registry: CollectorRegistry) -> None:
    bounded = {"version", "python", "component", "task", "silo", "code", "reason", "by"}
    bounded |= {"outcome", "direction", "kind", "cost"}
    for name, (_, labels) in declared(registry).items():
        assert labels <= bounded, name


def test_the_agents_page_says_what_the_ledger_says() -> None:
    registry = CollectorRegistry()
    shown = AgentMetrics(registry).privacy

    def sample(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"consilium_privacy_{name}", labels)

    shown.show(
        trainer_pb2.PrivacyStanding(
            releases=3,
            estimates=1,
            spent_micros=1_500_000,
            budget_micros=4_000_000,
            task_spent_micros=500_000,
        ),
        "flu",
    )
    assert (sample("epsilon_spent", task=""), sample("epsilon_budget", task="")) == (1.5, 4.0)
    assert (sample("epsilon_spent", task="flu"), sample("epsilon_budget", task="flu")) == (
        0.5,
        None,
    )
    assert (
        sample("releases_total", cost="proved"),
        sample("releases_total", cost="estimate"),
    ) == (2, 1)
    # Afterwards something left without noise: there is no bound any more.
    shown.show(trainer_pb2.PrivacyStanding(releases=4, estimates=1))
    assert sample("epsilon_spent", task="") == math.inf
    assert sample("releases_total", cost="proved") == 3
