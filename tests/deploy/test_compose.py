"""The compose files as Compose itself resolves them: what every container may, which profile starts whom, what people are told.

Run by `make deploy-test`; tests/deploy/stack.py says which programs.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from rendering import understood
from stack import CONSORTIUM, HOSPITALS, ROOT, SILO, WATCHED_SILO, Service, compose, files

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]

PAGES = [
    ROOT / "docs" / name
    for name in ("deploy-compose.md", "first-day-compose.md", "hospital-it.md", "backup.md")
]
EXAMPLES = {CONSORTIUM: ".env.example", WATCHED_SILO: "docker/silo.env.example"}


@cache
def configured(file: str, *profiles: str) -> dict[str, Any]:
    words = [word for profile in profiles for word in ("--profile", profile)]
    text = compose(*files(file), *words, "config", "--format", "json").stdout
    found: dict[str, Any] = json.loads(text)
    return found


def everything() -> Iterator[tuple[str, Service]]:
    """Every service there is, whatever profile it belongs to."""
    for file in (CONSORTIUM, WATCHED_SILO):
        for name, service in configured(file, "*")["services"].items():
            yield f"{file}: {name}", service


def lasting(service: Service) -> bool:
    return bool(service["restart"] == "unless-stopped")


def ours(service: Service) -> bool:
    return str(service["image"]).startswith("consilium-")


def mounts(service: Service) -> dict[str, Service]:
    return {one["target"]: one for one in service.get("volumes", [])}


@pytest.mark.parametrize(
    ("file", "profiles", "started"),
    [
        (CONSORTIUM, [], {"init", "coordinator"}),
        (CONSORTIUM, ["postgres"], {"init", "coordinator", "database"}),
        (CONSORTIUM, ["monitoring"], {"init", "coordinator", "prometheus", "grafana"}),
        (SILO, [], {"join", "agent"}),
        (SILO, ["cpu"], {"join", "agent", "trainer"}),
        (SILO, ["gpu"], {"join", "agent", "trainer-gpu"}),
        (WATCHED_SILO, ["cpu"], {"join", "agent", "trainer", "prometheus", "grafana"}),
    ],
)
def test_a_profile_starts_what_it_says(file: str, profiles: list[str], started: set[str]) -> None:
    assert set(configured(file, *profiles)["services"]) == started


class TestEveryContainer:
    def test_is_confined(self) -> None:
        for name, service in everything():
            assert service["read_only"] is True, name
            assert service["cap_drop"] == ["ALL"], name
            assert service["security_opt"] == ["no-new-privileges:true"], name
            assert service["init"] is True, name
            assert not service.get("privileged"), name
            if name.endswith("demo-report"):
                # Looks into every hospital, as nobody in earnest could.
                assert service["cap_add"] == ["DAC_READ_SEARCH"]
                continue
            assert service["user"].split(":")[0] not in ("0", "root"), name
            assert not service.get("cap_add"), name
            if ours(service):
                agent = name.endswith(("agent", "join"))
                assert service["user"] == ("10002:10002" if agent else "10001:10001"), name

    def test_agent_and_trainer_are_two_users_with_one_group_in_common(self) -> None:
        services = configured(SILO, "cpu")["services"]
        assert services["agent"]["user"] != services["trainer"]["user"]
        assert services["agent"]["group_add"] == services["trainer"]["group_add"] == ["10003"]

    def test_has_limits_and_a_log_that_ends(self) -> None:
        for name, service in everything():
            limits = service["deploy"]["resources"]["limits"]
            assert {"cpus", "memory", "pids"} <= set(limits), name
            assert set(service["logging"]["options"]) == {"max-size", "max-file"}, name
            for scratch in service.get("tmpfs", []):
                assert "size=" in scratch, name

    def test_of_ours_ends_in_time_and_is_watched_by_its_own_probe(self) -> None:
        probes = set()
        for name, service in everything():
            if not lasting(service):
                assert service["restart"] == "no", name
                assert service["healthcheck"] == {"disable": True}, name
                continue
            assert service["healthcheck"]["test"][0] == "CMD", name
            if ours(service):
                program, *words = service["healthcheck"]["test"][1:]
                assert program == "consilium", name
                understood(words)
                probes.add(" ".join(words))
                (drain,) = [word for word in service["command"] if word.startswith("--drain=")]
                assert seconds(service["stop_grace_period"]) > int(drain.split("=")[1]), name
        assert probes == {"coordinator probe", "agent probe --connected", "agent probe-trainer"}

    def test_waits_for_what_can_be_waited_for(self) -> None:
        for file in (CONSORTIUM, WATCHED_SILO):
            services = configured(file, "*")["services"]
            for name, service in services.items():
                for other, how in service.get("depends_on", {}).items():
                    expected = (
                        "service_healthy"
                        if lasting(services[other])
                        else "service_completed_successfully"
                    )
                    assert how["condition"] == expected, (name, other)

    def test_runs_a_command_that_exists(self) -> None:
        told = 0
        for _, service in everything():
            if ours(service) and not service.get("entrypoint"):
                understood(service["command"])
                told += 1
        assert told == 2 + 4 + 9

    def test_is_of_a_pinned_image(self) -> None:
        for name, service in everything():
            tag = service["image"].rpartition(":")[2]
            assert re.fullmatch(r"v?\d+\.\d+(\.\d+)?(-bookworm)?", tag), name

    def test_knows_secrets_by_file_only(self) -> None:
        for name, service in everything():
            for key, value in service.get("environment", {}).items():
                if re.search("PASSWORD|TOKEN|SECRET", key):
                    assert key.endswith("_FILE"), name
                    assert value.startswith("/run/secrets/"), name
        written = "".join(path.read_text() for path in map(ROOT.joinpath, EXAMPLES.values()))
        for line in re.findall(r"^#?(\w*(?:PASSWORD|TOKEN)\w*)=(.*)$", written, re.MULTILINE):
            assert line[0].endswith("_FILE"), line


def seconds(text: str) -> int:
    """Compose writes 1m30s."""
    parts = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", text)
    assert parts, text
    return int(parts[1] or 0) * 60 + int(parts[2] or 0)


def pairs() -> Iterator[tuple[Service, Service]]:
    """Agent and trainer of every hospital there is."""
    silo = configured(SILO, "*")["services"]
    yield silo["agent"], silo["trainer"]
    yield silo["agent"], silo["trainer-gpu"]
    demo = configured(CONSORTIUM, "demo")["services"]
    for hospital in HOSPITALS:
        yield demo[f"{hospital}-agent"], demo[f"{hospital}-trainer"]


class TestHospital:
    def test_the_trainer_has_no_network_and_the_agent_no_data(self) -> None:
        for agent, trainer in pairs():
            assert trainer["network_mode"] == "none"
            assert not {"networks", "ports", "secrets", "extra_hosts", "dns"} & set(trainer)
            assert mounts(trainer)["/data"]["read_only"] is True
            assert mounts(trainer)["/var/lib/consilium/silo/silo.yaml"]["read_only"] is True
            assert {one["type"] for one in agent["volumes"]} == {"volume"}
            held = {one["source"] for one in agent["volumes"]}
            assert len(held & {one["source"] for one in trainer["volumes"]}) == 1
            shared = "/var/lib/consilium/silo/exchange"
            assert mounts(agent)[shared]["source"] == mounts(trainer)[shared]["source"]

    def test_hospitals_of_the_demo_share_nothing_with_each_other(self) -> None:
        services = configured(CONSORTIUM, "demo")["services"]
        held = [
            {
                one["source"]
                for part in ("join", "agent", "trainer")
                for one in services[f"{name}-{part}"]["volumes"]
            }
            - {"demo-tokens"}
            for name in HOSPITALS
        ]
        assert all(len(one) == 7 for one in held)
        assert len(set.union(*held)) == 21

    def test_ledger_and_witness_lie_apart(self) -> None:
        for _, trainer in pairs():
            ledger, witness = (
                mounts(trainer)[f"/var/lib/consilium/silo/{part}"]["source"]
                for part in ("trainer", "witness")
            )
            assert ledger != witness

    def test_a_gpu_is_reserved_by_its_profile_only(self) -> None:
        services = configured(SILO, "*")["services"]
        (device,) = services["trainer-gpu"]["deploy"]["resources"]["reservations"]["devices"]
        assert device["capabilities"] == ["gpu"]
        assert services["trainer-gpu"]["image"].startswith("consilium-trainer-gpu:")
        assert "reservations" not in services["trainer"]["deploy"]["resources"]
        changing = {"image", "deploy", "profiles"}
        assert without(services["trainer"], changing) == without(services["trainer-gpu"], changing)

    def test_the_demo_runs_what_a_hospital_runs(self) -> None:
        """Nothing differs but where the volumes, the token and the network come from."""
        real = configured(SILO, "*")["services"]
        demo = configured(CONSORTIUM, "demo")["services"]
        elsewhere = {"volumes", "profiles", "depends_on", "networks", "secrets", "ports"}
        for hospital in HOSPITALS:
            for part in ("join", "agent", "trainer"):
                shown, meant = demo[f"{hospital}-{part}"], real[part]
                assert set(mounts(shown)) - {"/tokens"} == set(mounts(meant))
                left_out = elsewhere | ({"command"} if part == "join" else set())
                assert without(shown, left_out) == without(meant, left_out)


def without(service: Service, keys: set[str]) -> Service:
    return {key: value for key, value in service.items() if key not in keys}


class TestConsortium:
    def test_only_the_two_ports_of_the_coordinator_are_open_to_others(self) -> None:
        services = configured(CONSORTIUM, "monitoring", "postgres", "demo")["services"]
        opened = {
            (name, port["target"], port["host_ip"])
            for name, service in services.items()
            for port in service.get("ports", [])
        }
        assert opened == {
            ("coordinator", 7443, "0.0.0.0"),
            ("coordinator", 7444, "0.0.0.0"),
            ("prometheus", 9090, "127.0.0.1"),
            ("grafana", 3000, "127.0.0.1"),
        }

    def test_nobody_but_the_coordinator_reaches_the_database(self) -> None:
        whole = configured(CONSORTIUM, "monitoring", "postgres", "demo")
        assert whole["networks"]["database"]["internal"] is True
        near = {
            name
            for name, service in whole["services"].items()
            if "database" in service.get("networks", {})
        }
        assert near == {"init", "coordinator", "database"}

    def test_ports_that_hospitals_dial_are_the_same_inside_and_outside(self) -> None:
        """They stand in tokens and identities; 443 leaves most hospitals."""
        chosen = {"CONSILIUM_PORT": "443", "CONSILIUM_ENROLMENT_PORT": "8443"}
        text = compose("-f", CONSORTIUM, "config", "--format", "json", environment=chosen).stdout
        services = json.loads(text)["services"]
        ports = services["coordinator"]["ports"]
        assert {(port["published"], port["target"]) for port in ports} == {
            ("443", 443),
            ("8443", 8443),
        }
        assert {"--port=443", "--enrolment-port=8443"} <= set(services["init"]["command"])
        assert services["coordinator"]["sysctls"] == {"net.ipv4.ip_unprivileged_port_start": "0"}


class TestMonitoring:
    SIDES = pytest.mark.parametrize(
        ("file", "profiles", "side"),
        [
            (CONSORTIUM, ("monitoring", "demo"), "consortium"),
            (WATCHED_SILO, ("cpu",), "hospital"),
        ],
    )

    @SIDES
    def test_prometheus_scrapes_services_of_the_file(
        self, file: str, profiles: tuple[str, ...], side: str
    ) -> None:
        services = configured(file, *profiles)["services"]
        folder = Path(mounts(services["prometheus"])["/etc/prometheus"]["source"])
        assert folder == ROOT / "docker/prometheus" / side
        jobs = yaml.safe_load((folder / "prometheus.yml").read_text())["scrape_configs"]
        found = [
            name for job in jobs for sd in job.get("dns_sd_configs", []) for name in sd["names"]
        ]
        fixed = [
            one for job in jobs for sd in job.get("static_configs", []) for one in sd["targets"]
        ]
        found += [target.partition(":")[0] for target in fixed]
        assert set(found) - {"localhost"} <= set(services)

    @SIDES
    def test_grafana_finds_its_source_and_the_dashboards_of_its_side(
        self, file: str, profiles: tuple[str, ...], side: str
    ) -> None:
        grafana = mounts(configured(file, *profiles)["services"]["grafana"])
        folder = Path(grafana["/etc/grafana/provisioning"]["source"])
        sources = yaml.safe_load((folder / "datasources/prometheus.yaml").read_text())
        (source,) = sources["datasources"]
        assert source["url"] == "http://prometheus:9090"
        providers = yaml.safe_load((folder / "dashboards/consilium.yaml").read_text())
        (provider,) = providers["providers"]
        shown = Path(grafana[provider["options"]["path"]]["source"])
        assert shown == ROOT / "docker/grafana/dashboards" / side
        assert list(shown.glob("*.json"))

    def test_a_hospitals_pages_are_open_to_its_own_machine_only(self) -> None:
        services = configured(WATCHED_SILO, "cpu")["services"]
        opened = {
            (name, port["target"], port["host_ip"])
            for name, service in services.items()
            for port in service.get("ports", [])
        }
        assert opened == {
            (name, port, "127.0.0.1")
            for name, port in (("agent", 9465), ("prometheus", 9090), ("grafana", 3000))
        }


@pytest.mark.parametrize("file", EXAMPLES)
def test_the_example_names_every_setting(file: str) -> None:
    included = [ROOT / one for one in file.split(":")]
    if file == CONSORTIUM:
        included += [ROOT / "docker/demo/compose.yml", ROOT / "docker/monitoring.yml"]
    used = set(re.findall(r"\$\{(\w+)", "".join(path.read_text() for path in included)))
    offered = set(re.findall(r"^#?([A-Z_]+)=", (ROOT / EXAMPLES[file]).read_text(), re.MULTILINE))
    assert offered - {"COMPOSE_PROFILES", "COMPOSE_FILE"} == used


def told(page: Path) -> Iterator[tuple[str, str]]:
    """Service and our own words of every `docker compose exec` or `run` in what a page prints as code."""
    code = re.findall(r"```[^\n]*\n(.*?)```|`([^`\n]+)`", page.read_text(), re.DOTALL)
    commands = re.compile(
        r"\b(?:exec|run)((?: --[\w-]+)*) ([a-z][a-z-]*) ((?:consilium )?(?!consilium)[a-z][^\n|<>);…]*)"
    )
    for options, service, words in commands.findall("\n".join(map("".join, code))):
        if "--entrypoint" not in options:
            yield service, words.removeprefix("consilium ").strip()


def test_the_commands_people_are_told_to_run_exist() -> None:
    services = {name.rpartition(" ")[2] for name, _ in everything()}
    counted = Counter(page.name for page in PAGES for _ in told(page))
    assert counted["deploy-compose.md"] >= 5
    assert counted["first-day-compose.md"] >= 15
    for page in PAGES:
        for service, words in told(page):
            assert service in services, (page.name, service)
            understood(shlex.split(words))
