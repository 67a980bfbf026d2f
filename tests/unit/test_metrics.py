"""Metrics: documented to the last one, with bounded labels."""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor
from prometheus_client import CollectorRegistry

from coordinator.metrics.instruments import Metrics
from coordinator.metrics.store import StoreCollector, StoreSnapshot
from silo_agent.agent.metrics.instruments import AgentMetrics
from wire import __version__
from wire.consilium.v1 import (
    admin_pb2,
    enrolment_pb2,
    identity_pb2,
    registry_pb2,
    rounds_pb2,
    trainer_pb2,
)

pytestmark = pytest.mark.slow

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
    for collector, names in registry._collector_to_names.items():
        # What the client library tells of any process is documented there.
        if not any(name.startswith("consilium_") for name in names):
            continue
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
    registry.register(StoreCollector(lambda now: StoreSnapshot(), lambda: NOW, per_silo=True))
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
def test_names_say_their_unit_as_prometheus_wants_them_to(
    section: str, registry: CollectorRegistry
) -> None:
    foreign = re.compile(r"_(milliseconds|minutes|hours|days|kilobytes|percent|count|number)(_|$)")
    for name, (kind, _) in declared(registry).items():
        assert name.startswith("consilium_")
        assert not foreign.search(name), name
        assert name.endswith("_total") == (kind == "counter"), name
        if kind == "histogram":
            assert name.endswith("_seconds"), name


@pytest.mark.parametrize(("section", "registry"), REGISTRIES)
def test_each_page_tells_of_its_process_too(section: str, registry: CollectorRegistry) -> None:
    shown = {sample.name for family in registry.collect() for sample in family.samples}
    assert shown >= {"process_resident_memory_bytes", "process_cpu_seconds_total", "python_info"}
    build = {"version": __version__, "python": platform.python_version()}
    build["component"] = section.lower()
    assert registry.get_sample_value("consilium_build_info", build) == 1


@pytest.mark.parametrize(("section", "registry"), REGISTRIES)
def test_no_label_is_unbounded(section: str, registry: CollectorRegistry) -> None:
    bounded = {"version", "python", "component", "task", "silo", "code", "reason", "by", "port"}
    bounded |= {
        "outcome",
        "direction",
        "kind",
        "cost",
        "status",
        "method",
        "operation",
        "isolation",
    }
    for name, (_, labels) in declared(registry).items():
        assert labels <= bounded, name


def test_the_agents_page_says_what_the_ledger_says() -> None:
    registry = CollectorRegistry()
    shown = AgentMetrics(registry).privacy

    def sample(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"consilium_privacy_{name}", labels)

    shown.show(
        trainer_pb2.PrivacyTotals(
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
    shown.show(trainer_pb2.PrivacyTotals(releases=4, estimates=1))
    assert sample("epsilon_spent", task="") == math.inf
    assert sample("releases_total", cost="proved") == 3


def test_the_agents_page_says_what_the_trainer_says_of_its_work() -> None:
    registry = CollectorRegistry()
    shown = AgentMetrics(registry)

    def sample(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"consilium_{name}", labels)

    ballot = trainer_pb2.VoteResponse()
    ballot.training.duration.FromMilliseconds(1500)
    ballot.training.units, ballot.training.gpus = 24, 2
    shown.tasks.trained("flu", ballot)
    # A ballot that is handed out again was not trained again.
    shown.tasks.trained("flu", trainer_pb2.VoteResponse())
    shown.tasks.trained("flu", trainer_pb2.FinishResponse())
    assert sample("training_duration_seconds_count", task="flu") == 1
    assert sample("training_duration_seconds_sum", task="flu") == 1.5
    assert (sample("training_units", task="flu"), sample("training_gpus", task="flu")) == (24, 2)
    shown.set_silo("north")
    assert sample("agent_info", silo="north") == 1


def test_only_the_trainer_that_is_there_is_shown() -> None:
    registry = CollectorRegistry()
    shown = AgentMetrics(registry)
    old = trainer_pb2.DescribeResponse(version="0.0.9", isolation=trainer_pb2.ISOLATION_NONE)
    new = trainer_pb2.DescribeResponse(version="0.1.0", isolation=trainer_pb2.ISOLATION_CONTAINER)
    for described in (old, new):
        shown.trainer_found(described)
    (family,) = (f for f in registry.collect() if f.name == "consilium_agent_trainer_info")
    assert [sample.labels for sample in family.samples] == [
        {"version": "0.1.0", "isolation": "container"}
    ]


def reachable(message: Descriptor, seen: set[str]) -> Iterator[Descriptor]:
    """A message and all that can be in it."""
    if message.full_name not in seen:
        seen.add(message.full_name)
        yield message
        for field in message.fields:
            if field.message_type is not None:
                yield from reachable(field.message_type, seen)


def test_nothing_about_training_can_be_sent_to_the_coordinator() -> None:
    modules = (admin_pb2, enrolment_pb2, identity_pb2, registry_pb2, rounds_pb2)
    seen: set[str] = set()
    sent = [
        message
        for module in modules
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
        for message in reachable(method.input_type, seen)
    ]
    assert len(sent) > 30
    own = {
        trainer_pb2.TrainingReport.DESCRIPTOR.full_name,
        trainer_pb2.PrivacyTotals.DESCRIPTOR.full_name,
    }
    assert seen & own == set()
    # And no silo's message says the same in other words, but for how its ballot is weighed.
    by_silos = [
        field.name
        for method in rounds_pb2.DESCRIPTOR.services_by_name["RoundsService"].methods
        for message in reachable(method.input_type, set())
        if message.file.package.startswith("consilium")
        for field in message.fields
    ]
    telling = re.compile(r"train|gpu|device|duration|seconds|rows|units|patients|loss|spent")
    assert by_silos
    assert [name for name in by_silos if telling.search(name)] == ["units_log2"]
