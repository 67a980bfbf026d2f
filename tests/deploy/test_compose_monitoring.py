"""Profile `monitoring`, run by Compose: Prometheus as it is provisioned finds the coordinator and knows every rule.

Run by `make deploy-test`; tests/deploy/stack.py says which programs. PROMETHEUS_IMAGE names Prometheus's image.
Grafana stays away: Debian has none to make a stand-in of.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import yaml
from stack import CONSORTIUM, NO_PORTS, ROOT, Stack, eventually, stack

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]

NOR_PROMETHEUS = """
  prometheus:
    ports: !reset []
"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    environment = {}
    if image := os.environ.get("PROMETHEUS_IMAGE"):
        environment["PROMETHEUS_IMAGE"] = image
    folder = tmp_path_factory.mktemp("monitoring")
    with stack(CONSORTIUM, folder, NO_PORTS + NOR_PROMETHEUS, environment, "monitoring") as made:
        made("up", "--detach", "coordinator", "prometheus")
        eventually("both", lambda: made.healthy("coordinator", "prometheus"))
        yield made


def test_prometheus_reads_the_coordinator(watched: Stack) -> None:
    version = watched.run("coordinator", "consilium", "--version").strip()
    (info,) = eventually("a scrape", lambda: watched.series("consilium_build_info"))
    assert info["metric"]["version"] == version
    assert info["metric"]["job"] == "consilium-coordinator"


def test_every_rule_is_loaded_and_evaluated(watched: Stack) -> None:
    written = yaml.safe_load((ROOT / "docker/prometheus/consortium/alerts.yaml").read_text())[
        "groups"
    ]
    healthy = {group["name"]: ["ok"] * len(group["rules"]) for group in written}

    def states() -> dict[str, list[str]]:
        groups = watched.prometheus("rules")["groups"]
        return {one["name"]: [rule["health"] for rule in one["rules"]] for one in groups}

    assert eventually("every rule is well", lambda: states() == healthy)


def test_what_it_has_seen_outlives_its_container(watched: Stack) -> None:
    def first() -> float | None:
        """When the oldest sample was taken that it still knows."""
        series = watched.series("consilium_build_info[1h]")
        return float(series[0]["values"][0][0]) if series else None

    before = eventually("a scrape", first)
    watched("kill", "prometheus")
    watched("rm", "--force", "prometheus")
    watched("up", "--detach", "prometheus")
    assert eventually("an answer", first) == before
