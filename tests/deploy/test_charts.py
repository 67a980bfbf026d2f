"""Both charts by Helm's own engine: every set of values renders to objects that Kubernetes would take and that keep our promises.

Run by `make charts`.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from rendering import (
    CHARTS,
    GUIDE,
    LEAST,
    MATRIX,
    VALIDATOR,
    changed,
    containers,
    helm,
    of_kind,
    overridden,
    refusal,
    rendered,
    selects,
    templates,
    understood,
)

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(600)]

every_values = pytest.mark.parametrize(("chart", "values"), MATRIX)


def test_the_matrix_is_there() -> None:
    assert {chart for chart, _ in MATRIX} == {"coordinator", "silo"}
    assert len(MATRIX) >= 7


@pytest.mark.parametrize(
    ("operator", "values", "holds"),
    [
        ("In", ["agent", "doctor"], True),
        ("In", ["trainer"], False),
        ("NotIn", ["trainer"], True),
        ("NotIn", ["agent"], False),
        ("Exists", [], True),
        ("DoesNotExist", [], False),
    ],
)
def test_selects_is_kubernetes_rule(operator: str, values: list[str], holds: bool) -> None:
    def selector(key: str) -> dict[str, object]:
        return {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}

    labels = {"component": "agent"}
    assert selects(selector("component"), labels) is holds
    # Of a label that is not there only the negations hold.
    assert selects(selector("absent"), labels) is (operator in ("NotIn", "DoesNotExist"))
    assert not selects({**selector("component"), "matchLabels": {"component": "other"}}, labels)


def test_selects_does_not_guess() -> None:
    expression = {"key": "component", "operator": "Gt", "values": ["1"]}
    with pytest.raises(ValueError, match="Gt"):
        selects({"matchExpressions": [expression]}, {"component": "agent"})


@pytest.mark.parametrize("chart", ["coordinator", "silo"])
def test_helm_finds_nothing_wrong(chart: str) -> None:
    outcome = helm(
        "lint", CHARTS / chart, "-f", CHARTS / chart / "ci" / f"{LEAST[chart]}-values.yaml"
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@every_values
def test_kubernetes_takes_every_object(chart: str, values: str) -> None:
    known = [
        one
        for one in rendered(chart, values)
        if one["apiVersion"].partition("/")[0] not in ("monitoring.coreos.com", "cert-manager.io")
    ]
    check = (
        "import sys, yaml, kubernetes_validate\n"
        "for one in yaml.safe_load_all(sys.stdin):\n"
        "    kubernetes_validate.validate(one, '1.32', strict=True)\n"
    )
    outcome = subprocess.run(
        [VALIDATOR, "-c", check],
        input=yaml.safe_dump_all(known),
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr[-2000:]


def owner(chart: str, pod: str) -> tuple[int, int]:
    """User of a pod and group of its volumes: agent and trainer are two users with one group in common."""
    if chart == "coordinator":
        return 10001, 10001
    return (10002 if pod.endswith(("agent", "doctor")) else 10001), 10003


@every_values
def test_every_pod_fits_the_restricted_profile(chart: str, values: str) -> None:
    for name, template in templates(rendered(chart, values)):
        pod = template["spec"]
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True, name
        user, group = owner(chart, name)
        assert context["runAsUser"] == user, name
        assert context["runAsGroup"] == context["fsGroup"] == group, name
        assert context["seccompProfile"]["type"] in ("RuntimeDefault", "Localhost"), name
        assert set(context.get("seLinuxOptions", {})) <= {"level"}, name
        for sysctl in context.get("sysctls", []):
            assert sysctl["name"] == "net.ipv4.ip_unprivileged_port_start", name
        for host in ("hostNetwork", "hostPID", "hostIPC"):
            assert not pod.get(host), name
        for volume in pod.get("volumes", []):
            kinds = set(volume) - {"name"}
            assert kinds <= {"configMap", "secret", "emptyDir", "persistentVolumeClaim"}, name
        for container in containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, (name, container["name"])


@every_values
def test_no_pod_has_a_token_of_the_cluster(chart: str, values: str) -> None:
    manifests = rendered(chart, values)
    for name, template in templates(manifests):
        assert template["spec"]["automountServiceAccountToken"] is False, name
        assert template["spec"]["enableServiceLinks"] is False, name
    for account in of_kind(manifests, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False
    assert not of_kind(manifests, "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


@every_values
def test_every_container_has_limits_and_every_mount_a_volume(chart: str, values: str) -> None:
    manifests = rendered(chart, values)
    for owner in of_kind(manifests, "Deployment", "StatefulSet", "Job"):
        pod = owner["spec"]["template"]["spec"]
        claims = [one["metadata"]["name"] for one in owner["spec"].get("volumeClaimTemplates", [])]
        volumes = [one["name"] for one in pod.get("volumes", [])] + claims
        assert len(volumes) == len(set(volumes)), owner["metadata"]["name"]
        for container in containers(pod):
            assert {"cpu", "memory"} <= set(container["resources"]["limits"]), container["name"]
            for mount in container.get("volumeMounts", []):
                assert mount["name"] in volumes, (container["name"], mount["name"])
        for volume in pod.get("volumes", []):
            assert "emptyDir" not in volume or volume["emptyDir"]["sizeLimit"]


@every_values
def test_selectors_find_their_pods_and_nobody_else(chart: str, values: str) -> None:
    manifests = rendered(chart, values)
    labels = {name: template["metadata"]["labels"] for name, template in templates(manifests)}
    for owner in of_kind(manifests, "Deployment", "StatefulSet"):
        found = {name for name, has in labels.items() if selects(owner["spec"]["selector"], has)}
        assert found == {owner["metadata"]["name"]}
    for service in of_kind(manifests, "Service"):
        selector = {"matchLabels": service["spec"]["selector"]}
        (behind,) = [name for name, has in labels.items() if selects(selector, has)]
        template = dict(templates(manifests))[behind]
        offered = {
            port["name"] for one in template["spec"]["containers"] for port in one.get("ports", [])
        }
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= offered
    for one in of_kind(manifests, "PodMonitor", "PodDisruptionBudget"):
        assert sum(selects(one["spec"]["selector"], has) for has in labels.values()) == 1
    for one in of_kind(manifests, "ServiceMonitor"):
        services = of_kind(manifests, "Service")
        assert sum(selects(one["spec"]["selector"], s["metadata"]["labels"]) for s in services) == 1


@every_values
def test_the_commands_are_ours(chart: str, values: str) -> None:
    """Every word after `consilium` is a command or an option that exists."""
    for _, template in templates(rendered(chart, values)):
        for container in containers(template["spec"]):
            if "command" not in container:
                understood(container["args"])
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                if probe in container:
                    program, *words = container[probe]["exec"]["command"]
                    assert program == "consilium"
                    understood(words)


@pytest.mark.parametrize(
    "text", ["helm/coordinator/templates/NOTES.txt", "helm/silo/templates/NOTES.txt", GUIDE]
)
def test_the_commands_people_are_told_to_run_exist(text: str) -> None:
    told = re.findall(r"-- consilium ([a-z][^\n`]*)", (CHARTS.parent / text).read_text())
    assert told
    for words in told:
        understood(words.split())


@pytest.mark.parametrize("chart", ["coordinator", "silo"])
def test_the_notes_end_in_the_next_three_commands(chart: str) -> None:
    notes = (CHARTS / chart / "templates" / "NOTES.txt").read_text()
    told = re.search(r"\nNext:\n((?:  .+\n)+)\n", notes)
    assert told
    commands = told[1].splitlines()
    assert len(commands) == 3
    assert "helm" in commands[0]
    assert " test " in commands[0]


def test_the_values_of_the_guide_are_taken(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (CHARTS.parent / GUIDE).read_text(), re.DOTALL)
    assert len(blocks) >= 4
    for block in blocks:
        chart = "silo" if {"join", "trainer"} & set(yaml.safe_load(block)) else "coordinator"
        outcome = overridden(tmp_path, chart, block)
        assert outcome.returncode == 0, (block, outcome.stderr)


@pytest.mark.parametrize(
    ("chart", "values", "name", "probes"),
    [
        ("coordinator", "sqlite", "north-coordinator", ["coordinator probe"] * 3),
        ("silo", "cpu", "north-silo-trainer", ["agent probe-trainer"] * 3),
        (
            "silo",
            "cpu",
            "north-silo-agent",
            ["agent probe", "agent probe --connected", "agent probe"],
        ),
    ],
)
def test_probes_ask_the_program_itself(
    chart: str, values: str, name: str, probes: list[str]
) -> None:
    (container,) = dict(templates(rendered(chart, values)))[name]["spec"]["containers"]
    kinds = ("startupProbe", "readinessProbe", "livenessProbe")
    assert [container[kind]["exec"]["command"][1:] for kind in kinds] == [
        one.split() for one in probes
    ]


@every_values
def test_a_pod_is_given_longer_than_its_drain(chart: str, values: str) -> None:
    for owner in of_kind(rendered(chart, values), "Deployment", "StatefulSet"):
        pod = owner["spec"]["template"]["spec"]
        (drain,) = [word for word in pod["containers"][0]["args"] if word.startswith("--drain=")]
        assert pod["terminationGracePeriodSeconds"] > int(drain.removeprefix("--drain="))


@every_values
def test_a_pod_that_never_became_ready_does_not_block_its_successor(
    chart: str, values: str
) -> None:
    for owner in of_kind(rendered(chart, values), "StatefulSet"):
        assert owner["spec"]["podManagementPolicy"] == "Parallel", owner["metadata"]["name"]


@pytest.mark.parametrize("chart", ["coordinator", "silo"])
@pytest.mark.parametrize("release", ["2026", "on"])
def test_a_release_may_be_called_what_yaml_takes_for_something_else(
    tmp_path: Path, chart: str, release: str
) -> None:
    manifests = changed(tmp_path, chart, "{fullnameOverride: trial, nameOverride: '7'}", release)
    pods = [template["metadata"]["labels"] for _, template in templates(manifests)]
    for labels in (*pods, *(one["metadata"]["labels"] for one in manifests)):
        assert labels["app.kubernetes.io/instance"] == release
        assert labels["app.kubernetes.io/name"] == "7"


@pytest.mark.parametrize("chart", ["coordinator", "silo"])
@pytest.mark.parametrize("name", ["2026", "st.mary"])
def test_a_name_that_no_service_may_have_is_refused(tmp_path: Path, chart: str, name: str) -> None:
    assert "cannot name a Service" in refusal(tmp_path, chart, f"fullnameOverride: '{name}'")


@pytest.mark.parametrize("chart", ["coordinator", "silo"])
def test_names_are_asked_for_at_the_ports_of_the_value(tmp_path: Path, chart: str) -> None:
    database = "database: {url: 'postgresql+psycopg://u@db/x'}\n" if chart == "coordinator" else ""

    def ports(override: str) -> set[tuple[str, int]]:
        policies = of_kind(changed(tmp_path, chart, database + override), "NetworkPolicy")
        (rule,) = next(
            one["spec"]["egress"] for one in policies if one["metadata"]["name"].endswith("-to-dns")
        )
        assert rule["to"]
        return {(one["protocol"], one["port"]) for one in rule["ports"]}

    # 5353 is OpenShift's: a policy sees the port of the pod.
    both = {"UDP", "TCP"}
    assert ports("") == {(protocol, port) for protocol in both for port in (53, 5353)}
    own = "networkPolicy: {dns: {ports: [1053]}}"
    assert ports(own) == {(protocol, 1053) for protocol in both}
