"""What the charts consist of, as far as it can be told without Helm; `make charts` renders them."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from patience import PATIENCE

from coordinator.pki.authority import Authority
from coordinator.settings import Limits
from wire import __version__

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
CHARTS = REPOSITORY / "helm"
SIDES = {"coordinator": "consortium", "silo": "hospital"}
both = pytest.mark.parametrize("chart", ["coordinator", "silo"])


def schema(chart: str) -> dict[str, Any]:
    text = (CHARTS / chart / "values.schema.json").read_text()
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def objects(part: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every part of a schema that describes an object, with where it stands."""
    if isinstance(part, dict):
        if part.get("type") == "object":
            yield path, part
        for key, value in part.items():
            yield from objects(value, f"{path}/{key}")
    elif isinstance(part, list):
        for number, value in enumerate(part):
            yield from objects(value, f"{path}/{number}")


def described(root: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """The part a reference stands for."""
    if "$ref" not in part:
        return part
    found: dict[str, Any] = root["definitions"][part["$ref"].removeprefix("#/definitions/")]
    return found


@both
def test_the_chart_has_the_version_of_the_software(chart: str) -> None:
    about = yaml.safe_load((CHARTS / chart / "Chart.yaml").read_text())
    assert about["appVersion"] == about["version"] == __version__


@both
def test_no_object_of_the_schema_takes_what_it_does_not_name(chart: str) -> None:
    # Said in another tool's words, which that tool checks: silo.yaml, a pod's affinity, Helm's own `global`.
    elsewhere = {"/properties/settings", "/properties/affinity", "/properties/global"}
    for path, part in objects(schema(chart)):
        if "properties" in part:
            assert part["additionalProperties"] is False, path
        elif path not in elsewhere:
            assert part["additionalProperties"] == {"type": "string"}, path


@both
def test_values_and_schema_name_the_same_things(chart: str) -> None:
    root = schema(chart)
    values = yaml.safe_load((CHARTS / chart / "values.yaml").read_text())
    compared = 0

    def compare(part: dict[str, Any], value: Any, path: str) -> None:
        nonlocal compared
        part = described(root, part)
        if not isinstance(value, dict) or not value or "properties" not in part:
            return
        # What is named in the schema only to be refused with a sentence has no default.
        offered = {key for key, one in part["properties"].items() if set(one) != {"description"}}
        optional = {"global", "ephemeral-storage"}
        assert set(value) - offered == set(), path
        assert offered - set(value) <= optional, path
        compared += 1
        for key, one in value.items():
            compare(part["properties"][key], one, f"{path}.{key}")

    compare(root, values, "values")
    assert compared > 10


def test_the_schema_knows_every_limit_of_the_coordinator() -> None:
    settings = schema("coordinator")["properties"]["settings"]["properties"]
    assert set(settings["limits"]["properties"]) == set(Limits.model_fields)


@both
def test_alerts_and_dashboards_are_copies(chart: str) -> None:
    """Helm reads nothing outside a chart; `make charts-files` copies."""
    files = CHARTS / chart / "files"
    docker, side = REPOSITORY / "docker", SIDES[chart]

    def pages(folder: Path) -> dict[str, str]:
        return {path.name: path.read_text() for path in folder.iterdir()}

    originals = pages(docker / "grafana" / "dashboards" / side)
    assert originals
    assert pages(files / "dashboards") == originals, "run `make charts-files`"
    alerts = (docker / "prometheus" / side / "alerts.yaml").read_text()
    assert (files / "alerts.yaml").read_text() == alerts, "run `make charts-files`"


@pytest.fixture
def walled_in() -> ModuleType:
    """The script as a module."""
    spec = spec_from_file_location("walled_in", CHARTS / "silo" / "files" / "walled_in.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Linux has no way there, whatever the network: the kernel says so at once.
NOWHERE = [("TCP", "255.255.255.255", 443), ("UDP", "255.255.255.255", 53)]


def test_walled_in_knows_an_open_way(walled_in: ModuleType) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert walled_in.tried(("TCP", *listener.getsockname())) == "open"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as resolver:
        resolver.bind(("127.0.0.1", 0))

        def answer() -> None:
            question, whom = resolver.recvfrom(512)
            resolver.sendto(question, whom)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        assert walled_in.tried(("UDP", *resolver.getsockname())) == "open"
        thread.join(PATIENCE)


def test_walled_in_takes_silence_and_unreachable_for_a_wall(walled_in: ModuleType) -> None:
    assert [walled_in.tried(way) for way in NOWHERE] == ["denied", "denied"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        assert walled_in.tried(("UDP", *silent.getsockname()), 0.2) == "denied"
    # A queue that is full drops who knocks.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as queue:
        queue.enter_context(socket.create_connection(full.getsockname()))
        assert walled_in.tried(("TCP", *full.getsockname()), 0.2) == "denied"


@pytest.mark.parametrize("protocol", ["TCP", "UDP"])
def test_walled_in_does_not_take_a_refusal_for_a_wall(walled_in: ModuleType, protocol: str) -> None:
    """A packet that is refused has got out, unless the plug-in is known to refuse."""
    kind = socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET, kind) as gone:
        gone.bind(("127.0.0.1", 0))
        way = (protocol, *gone.getsockname())
    assert walled_in.tried(way) == "refused"
    wrong = walled_in.main(0, 0, {"denied"}, [*NOWHERE, way])
    assert "refused" in wrong
    assert "proves no wall" in wrong
    assert "networkPolicy.rejects" in wrong
    assert walled_in.main(0, 0, {"denied", "refused"}, [*NOWHERE, way]) is None


def test_walled_in_takes_an_error_it_does_not_know_for_no_wall(
    walled_in: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walled_in, "tried", lambda _: "Too many open files")
    assert "Too many open files" in walled_in.main(0, 0, {"denied", "refused"}, NOWHERE[:1])


@pytest.mark.parametrize(
    ("said", "patience", "passes"),
    [
        (["denied"] * 5, 0, True),
        # The policy arrives after a moment.
        (["open", "denied", "open", *["denied"] * 5], 60, True),
        # A lost packet is no wall.
        (["denied"] * 4 + ["open"], 0, False),
        (["open"], 0, False),
    ],
)
def test_walled_in_wants_every_way_closed_several_times_in_a_row(
    walled_in: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    said: list[str],
    patience: float,
    passes: bool,
) -> None:
    answers = iter(said)
    monkeypatch.setattr(
        walled_in, "tried", lambda way: next(answers) if way[0] == "TCP" else "denied"
    )
    wrong = walled_in.main(patience, 0, {"denied"}, NOWHERE)
    assert (wrong is None) is passes
    assert not list(answers)
    assert wrong is None or "does not enforce policies" in wrong


def test_walled_in_tries_the_api_server_and_every_resolver_outside_the_pod(
    walled_in: ModuleType,
) -> None:
    around = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    resolver = "search svc.cluster.local\nnameserver 10.96.0.10\nnameserver\tfd00::a\nnameserver 127.0.0.1\n"
    assert walled_in.ways(around, resolver) == [
        ("TCP", "10.96.0.1", 443),
        ("UDP", "10.96.0.10", 53),
        ("TCP", "10.96.0.10", 53),
        ("UDP", "fd00::a", 53),
        ("TCP", "fd00::a", 53),
    ]
    assert walled_in.ways(around, "nameserver 127.0.0.1\n") == [("TCP", "10.96.0.1", 443)]


def test_walled_in_fails_as_a_program_where_the_wall_is_open() -> None:
    script = (CHARTS / "silo" / "files" / "walled_in.py").read_text()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        around = {
            **os.environ,
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(port),
        }
        # As the pod runs it.
        outcome = subprocess.run(
            [sys.executable, "-c", script, "0", "0", "refused-is-denied"],
            env=around,
            capture_output=True,
            text=True,
            check=False,
        )
    assert outcome.returncode == 1
    assert f"TCP 127.0.0.1 port {port} open" in outcome.stderr
    assert "does not enforce policies" in outcome.stderr


@pytest.mark.parametrize(
    ("host", "fits"), [("localhost", True), ("coordinator.example.org", False)]
)
def test_reachable_knows_the_coordinator_by_its_name(tmp_path: Path, host: str, fits: bool) -> None:
    now = datetime.now(UTC)
    authority = Authority.create(tmp_path / "authority", "consilium", now)
    issued = authority.issue_server(["localhost"], timedelta(days=1), now)
    pem = tmp_path / "server.pem"
    pem.write_bytes(issued.key_pem + issued.certificate_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            plain, _ = listener.accept()
            with context.wrap_socket(plain, server_side=True) as secured:
                secured.recv(1)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        script = CHARTS / "coordinator" / "files" / "reachable.py"
        port = str(listener.getsockname()[1])
        outcome = subprocess.run(
            [sys.executable, script, "127.0.0.1", host, port],
            capture_output=True,
            text=True,
            check=False,
        )
        thread.join(PATIENCE)
    assert (outcome.returncode == 0) is fits, outcome.stderr
    assert f"answers as {host}" in outcome.stdout if fits else "not of" in outcome.stderr
