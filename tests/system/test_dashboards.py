"""A real federation, a real Prometheus that scrapes it, and every query of every dashboard. Run by `make test-system`."""

from __future__ import annotations

import asyncio
import json
import math
import re
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from federation import PRIVATE_ROWS, Federation
from patience import PATIENCE
from service import eventually, free_port

from coordinator.cli.coordinator import rotate_authority
from wire import __version__
from wire.consilium.v1 import rounds_pb2, rounds_pb2_grpc
from wire.identity.files import IdentityFiles
from wire.net.channels import secure_channel

pytestmark = pytest.mark.system

REPOSITORY = Path(__file__).parents[2]
DASHBOARDS = sorted((REPOSITORY / "docker" / "grafana" / "dashboards").glob("*/*.json"))
RULES = sorted((REPOSITORY / "docker" / "prometheus").glob("*/alerts.yaml"))
NAMES = ("north", "south", "east", "west")
PRIVACY = {"south": {"mechanism": "xor", "epsilon": 3, "lifetime_epsilon": 9}}
LONG = 2000
"""Rounds of the task that goes on while Prometheus looks."""
REHEARSAL = {"alert": "ConsiliumRehearsal", "expr": "vector(1)", "labels": {"severity": "warning"}}
"""An alert that always fires, so that there is one to show."""
DEFAULT = re.compile(r" or (vector\(0\)|0 \* .*)$")
"""What a tile shows where there is nothing to count."""
NOTHING = {
    "consilium_round_deadlines_missed",
    "consilium_consensus_churn_ratio",
    "consilium_consensus_abstention_ratio",
    "consilium_party_epsilon_spent",
    "consilium_store_repetitions_total",
    "consilium_agent_waiting_for_approval",
    "consilium_agent_clock_skew_seconds",
    "consilium_training_gpus",
}
"""Of these 0 is a right answer here: no round was too late, no consensus is noisy, nobody waits, nobody has a GPU."""
NOTHING_SHOWN = {"Calls that did not end well", "Against the median silo", "Estimates"}
"""And here: it was a moment ago, the silo may be the median one, and every cost is proved."""


class Prometheus:
    """A server of our own that scrapes the coordinator and the agents every second."""

    def __init__(self, folder: Path, targets: dict[str, list[int]]) -> None:
        self.port = free_port()
        folder.mkdir()
        jobs = [
            {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{p}" for p in ports]}]}
            for job, ports in targets.items()
        ]
        settings = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [*map(str, RULES), "rehearsal.yaml"],
            "scrape_configs": jobs,
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
        rehearsal = {"groups": [{"name": "rehearsal", "rules": [REHEARSAL]}]}
        (folder / "rehearsal.yaml").write_text(yaml.safe_dump(rehearsal))
        self._log = (folder / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            stdout=self._log,
            stderr=self._log,
        )

    def ask(self, path: str, **parameters: str) -> Any:
        """What its interface answers; None before it listens."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/api/v1/{path}?{query}"
            ) as told:
                return json.load(told)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None
        except OSError:
            return None

    def values(self, expression: str) -> list[float]:
        """The numbers an expression has now; what is no number is not counted as one."""
        told = self.ask("query", query=expression)
        found = [float(series["value"][1]) for series in told["result"]] if told else []
        return [value for value in found if not math.isnan(value)]

    def end(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()
        self._log.close()


def provoke(live: Federation) -> None:
    """What an operator hopes not to see: a ballot of someone without a vote, strangers without TLS and without a word."""

    async def vote_as_an_admin() -> None:
        admin = IdentityFiles.load(live.home / "admin")
        async with secure_channel(f"localhost:{live.port}", admin) as channel:
            stub = rounds_pb2_grpc.RoundsServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.CastBallot(iter([rounds_pb2.CastBallotRequest()]))

    asyncio.run(vote_as_an_admin())
    with socket.create_connection(("127.0.0.1", live.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        stranger.recv(1)
    # Who says nothing is shown out when the time for a handshake is over.
    silent = socket.create_connection(("127.0.0.1", live.port))
    with silent, suppress(ConnectionError):
        silent.recv(1)


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Four silos: three vote round after round, one with a privacy budget; the fourth holds another task's round open."""
    folder = tmp_path_factory.mktemp("live")
    live = Federation(folder)
    prometheus = None
    try:
        live.serve()
        live.publish()
        silos = [live.join(name, privacy=PRIVACY.get(name)) for name in NAMES]
        agents = [silo.metrics_port for silo in silos]
        targets = {"coordinator": [live.metrics_port], "agent": agents}
        prometheus = Prometheus(folder / "prometheus", targets)
        live.silos["west"].close_gate()
        live.run(*silos)
        live.start("held", silos=["north", "west"])
        voting, rounds = ["north", "south", "east"], {"max_rounds": LONG}
        live.start("flu", silos=voting, rounds=rounds, encoding="one_hot")
        # What happens once is seen if it was looked for before.
        eventually("a scrape", partial(prometheus.values, "consilium_ballots_refused_total"))
        provoke(live)
        # Every silo renews at its next heartbeat.
        rotate_authority(live.home)
        yield prometheus
    finally:
        if prometheus is not None:
            prometheus.end()
        live.end()


def substituted(expression: str, values: dict[str, str]) -> str:
    """The expression as Grafana would send it."""
    for name, value in {**values, "__rate_interval": "30s", "__range": "5m"}.items():
        expression = re.sub(rf"\$\{{?{name}\b\}}?", value, expression)
    assert "$" not in expression, expression
    return expression


def chosen(prometheus: Prometheus, page: dict[str, Any]) -> dict[str, str]:
    """A value for every variable of a dashboard, as Grafana would offer it."""
    values: dict[str, str] = {}
    for variable in page["templating"]["list"]:
        if variable["type"] == "datasource":
            continue
        if variable["multi"]:
            values[variable["name"]] = variable["allValue"]
            continue
        asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
        assert asked, variable["definition"]
        series, label = substituted(asked[1], values), asked[2]
        path, wanted = f"label/{label}/values", {"match[]": series}
        offered = eventually(
            variable["definition"], lambda path=path, wanted=wanted: prometheus.ask(path, **wanted)
        )
        # The silo that has a budget, where one silo is to be chosen.
        values[variable["name"]] = "south" if "south" in offered else offered[0]
    return values


def answered(title: str, expression: str, values: list[float]) -> bool:
    """True if there is an answer that says something: not only 0, unless that is right."""
    nothing = title in NOTHING_SHOWN or any(name in expression for name in NOTHING)
    return bool(values) and (nothing or any(values))


@pytest.mark.parametrize("page", DASHBOARDS, ids=lambda page: page.stem)
def test_every_query_of_every_panel_has_an_answer(scraped: Prometheus, page: Path) -> None:
    loaded = json.loads(page.read_text())
    values = chosen(scraped, loaded)
    left = {
        (panel["title"], substituted(DEFAULT.sub("", target["expr"]), values))
        for panel in loaded["panels"]
        for target in panel.get("targets", ())
    }
    assert len(left) > 5

    def all_answered() -> bool:
        # One good answer is enough: a round that has just begun has no ballots.
        left.difference_update(
            {query for query in left if answered(*query, scraped.values(query[1]))}
        )
        return not left

    with suppress(AssertionError):
        eventually(f"an answer to all of {page.stem}", all_answered, PATIENCE)
    assert sorted(left) == []


def test_every_documented_metric_is_on_some_page(scraped: Prometheus) -> None:
    rows = re.findall(
        r"^\| `(consilium_\w+)` \| (\w+)", (REPOSITORY / "docs" / "metrics.md").read_text(), re.M
    )
    wanted = {f"{name}_count" if kind == "histogram" else name for name, kind in rows}

    def missing() -> set[str]:
        return wanted - set(scraped.ask("label/__name__/values"))

    with suppress(AssertionError):
        eventually("every metric", lambda: not missing(), PATIENCE)
    assert missing() == set()


def test_what_the_pages_show_is_what_happened(scraped: Prometheus) -> None:
    assert scraped.values('consilium_round_votes_possible{task="held"}') == [2]
    assert scraped.values('consilium_round_votes_needed{task="held"}') == [2]
    assert scraped.values("sum(consilium_silo_connected)") == [4]
    assert scraped.values("sum(up)") == [5]
    assert scraped.values('consilium_training_units{task="flu"}') == [PRIVATE_ROWS] * 3
    assert set(scraped.values("consilium_training_gpus")) == {0}
    (spent,) = scraped.values('consilium_privacy_epsilon_spent{task="flu"} < +Inf')
    assert 0 < spent <= 3
    told = scraped.ask("query", query="consilium_refusals_total > 0")["result"]
    assert {series["metric"]["code"] for series in told} >= {"WRONG_ROLE"}
    # Once is enough to be seen.
    assert scraped.values('increase(consilium_ballots_refused_total{code="WRONG_ROLE"}[1h]) > 0')
    told = scraped.ask("query", query="consilium_silo_version_info")["result"]
    assert {series["metric"]["version"] for series in told} == {__version__}
    states = scraped.ask("rules", type="alert")["groups"]
    broken = [
        rule["name"] for group in states for rule in group["rules"] if rule["health"] == "err"
    ]
    assert broken == []
