"""Metrics: documented to the last one, with bounded labels."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from coordinator.consensus import Agreement
from coordinator.metrics import AgreementCollector, Metrics, SiloCollector
from coordinator.store.records import TaskAgreement
from silo_agent.metrics import AgentMetrics
from wire.consilium.v1 import trainer_pb2
from wire.errors import STORE_UNAVAILABLE, Refusal

NOW = datetime(2026, 1, 1, tzinfo=UTC)
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
    registry.register(SiloCollector(list, lambda: NOW))
    registry.register(AgreementCollector(lambda since: [], lambda: NOW))
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


def test_agreement_is_read_at_every_scrape_and_only_of_those_who_were_compared() -> None:
    registry = CollectorRegistry()
    asked: list[datetime] = []
    found = [
        TaskAgreement("flu", {"north": Agreement(8, 6), "silent": Agreement(0, 0)}),
        TaskAgreement("stroke", {"north": Agreement(5, 0)}),
    ]

    def read(since: datetime) -> list[TaskAgreement]:
        asked.append(since)
        return found

    def sample(task: str, silo: str) -> float | None:
        labels = {"task": task, "silo": silo}
        return registry.get_sample_value("consilium_silo_agreement_ratio", labels)

    registry.register(AgreementCollector(read, lambda: NOW))
    assert asked == []
    assert (sample("flu", "north"), sample("stroke", "north")) == (0.75, 0.0)
    assert sample("flu", "silent") is None
    assert set(asked) == {NOW - timedelta(days=1)}
    found.clear()
    assert sample("flu", "north") is None


def test_without_its_database_the_page_shows_everything_else() -> None:
    registry = CollectorRegistry()
    Metrics(registry)

    def gone(*_: object) -> list[TaskAgreement]:
        raise Refusal(STORE_UNAVAILABLE)

    registry.register(AgreementCollector(gone, lambda: NOW))
    shown = {family.name: family.samples for family in registry.collect()}
    assert shown["consilium_silo_agreement_ratio"] == []
    assert shown["consilium_build_info"]


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
