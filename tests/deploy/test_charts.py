"""Both charts by Helm's own engine: every set of values renders to objects that Kubernetes would take and that keep our promises.

Run by `make charts`. HELM names the program (`helm` by default), KUBERNETES_VALIDATE a Python that has kubernetes-validate.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from foreign_leaf import DAY, NOW, Order

from coordinator.authority import Authority
from coordinator.caretaker import ensure_leaf
from coordinator.rotation import Authorities
from coordinator.settings import CoordinatorHome, CoordinatorSettings
from silo_agent.trainer.settings import SiloSettings
from wire.cli import application

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(600)]

CHARTS = Path(__file__).parents[2] / "helm"
HELM = os.environ.get("HELM", "helm")
VALIDATOR = os.environ.get("KUBERNETES_VALIDATE", sys.executable)
MATRIX = [
    (path.parent.parent.name, path.name.removesuffix("-values.yaml"))
    for path in sorted(CHARTS.glob("*/ci/*-values.yaml"))
]
GUIDE = "docs/deploy-kubernetes.md"
LEAST = {"coordinator": "sqlite", "silo": "cpu"}

Manifest = dict[str, Any]


def helm(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [HELM, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@cache
def rendered(chart: str, values: str) -> tuple[Manifest, ...]:
    file = CHARTS / chart / "ci" / f"{values}-values.yaml"
    outcome = helm("template", "north", CHARTS / chart, "-f", file, "-n", "hospital")
    assert outcome.returncode == 0, outcome.stderr
    return tuple(one for one in yaml.safe_load_all(outcome.stdout) if one)


def overridden(folder: Path, chart: str, override: str) -> subprocess.CompletedProcess[str]:
    """The least values with `override` on top."""
    file = folder / "override.yaml"
    file.write_text(override)
    least = CHARTS / chart / "ci" / f"{LEAST[chart]}-values.yaml"
    return helm("template", "north", CHARTS / chart, "-f", least, "-f", file)


def refusal(folder: Path, chart: str, override: str) -> str:
    """What Helm says of the least values with `override` on top; fails if it takes them."""
    outcome = overridden(folder, chart, override)
    assert outcome.returncode != 0, f"{override!r} was taken"
    return outcome.stderr


def of_kind(manifests: tuple[Manifest, ...], *kinds: str) -> list[Manifest]:
    return [one for one in manifests if one["kind"] in kinds]


def named(manifests: tuple[Manifest, ...], kind: str, name: str) -> Manifest:
    return next(one for one in of_kind(manifests, kind) if one["metadata"]["name"] == name)


def templates(manifests: tuple[Manifest, ...]) -> Iterator[tuple[str, Manifest]]:
    """Name and pod template of everything that starts pods."""
    for one in of_kind(manifests, "Deployment", "StatefulSet", "Job"):
        yield one["metadata"]["name"], one["spec"]["template"]


def containers(pod: Manifest) -> list[Manifest]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def selects(selector: Manifest, labels: dict[str, str]) -> bool:
    """Kubernetes' rule for matchLabels and `In`."""
    equal = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    return equal and all(
        expression["operator"] == "In" and labels.get(expression["key"]) in expression["values"]
        for expression in selector.get("matchExpressions", [])
    )


def policies_for(manifests: tuple[Manifest, ...], labels: dict[str, str]) -> dict[str, Manifest]:
    return {
        one["metadata"]["name"]: one["spec"]
        for one in of_kind(manifests, "NetworkPolicy")
        if selects(one["spec"]["podSelector"], labels)
    }


every_values = pytest.mark.parametrize(("chart", "values"), MATRIX)


def test_the_matrix_is_there() -> None:
    assert {chart for chart, _ in MATRIX} == {"coordinator", "silo"}
    assert len(MATRIX) >= 7


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


@every_values
def test_every_pod_fits_the_restricted_profile(chart: str, values: str) -> None:
    for name, template in templates(rendered(chart, values)):
        pod = template["spec"]
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True, name
        assert context["runAsUser"] == context["runAsGroup"] == context["fsGroup"] == 10001, name
        assert context["seccompProfile"]["type"] in ("RuntimeDefault", "Localhost"), name
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


def understood(words: list[str]) -> None:
    command: Any = typer.main.get_command(application(words))
    rest = list(words)
    while hasattr(command, "commands"):
        assert rest[0] in command.commands, words
        command, rest = command.commands[rest[0]], rest[1:]
    known = {option for parameter in command.params for option in parameter.opts}
    for word in rest:
        assert not word.startswith("--") or word.split("=")[0] in known, (words, word)


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


class TestSilo:
    @pytest.mark.parametrize("values", [values for chart, values in MATRIX if chart == "silo"])
    def test_the_trainer_reaches_nobody_and_nobody_reaches_it(self, values: str) -> None:
        manifests = rendered("silo", values)
        (trainer,) = [t for name, t in templates(manifests) if name.endswith("-trainer")]
        (policy,) = policies_for(manifests, trainer["metadata"]["labels"]).values()
        assert sorted(policy["policyTypes"]) == ["Egress", "Ingress"]
        assert not policy.get("egress")
        assert not policy.get("ingress")
        assert trainer["spec"]["dnsPolicy"] == "None"
        assert not any("ports" in one for one in trainer["spec"]["containers"])

    @pytest.mark.parametrize("values", [values for chart, values in MATRIX if chart == "silo"])
    def test_nobody_but_the_trainer_sees_the_data(self, values: str) -> None:
        manifests = rendered("silo", values)
        for name, template in templates(manifests):
            volumes = {
                one["persistentVolumeClaim"]["claimName"]: one["persistentVolumeClaim"]
                for one in template["spec"].get("volumes", [])
                if "persistentVolumeClaim" in one
            }
            if not name.endswith("-trainer"):
                assert "patients" not in volumes, name
                continue
            assert volumes["patients"]["readOnly"] is True
            mounts = {m["mountPath"]: m for m in template["spec"]["containers"][0]["volumeMounts"]}
            assert mounts["/data"]["readOnly"] is True
            assert not any("secret" in one for one in template["spec"]["volumes"])

    @pytest.mark.parametrize("values", [values for chart, values in MATRIX if chart == "silo"])
    def test_agent_and_trainer_share_one_claim_on_one_node(self, values: str) -> None:
        manifests = rendered("silo", values)
        seen = {}
        for owner in of_kind(manifests, "StatefulSet"):
            name, pod = owner["metadata"]["name"], owner["spec"]["template"]["spec"]
            claims = {
                one["persistentVolumeClaim"]["claimName"]
                for one in pod["volumes"]
                if "persistentVolumeClaim" in one
            }
            own = [
                f"{one['metadata']['name']}-{name}-0"
                for one in owner["spec"].get("volumeClaimTemplates", [])
            ]
            seen[name.rsplit("-", 1)[1]] = claims | set(own)
        (shared,) = seen["agent"] & seen["trainer"]
        assert shared.endswith("-exchange")
        labels = {
            name.rsplit("-", 1)[1]: t["metadata"]["labels"] for name, t in templates(manifests)
        }
        (agent,) = [t for name, t in templates(manifests) if name.endswith("-agent")]
        (term,) = agent["spec"]["affinity"]["podAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        assert selects(term["labelSelector"], labels["trainer"])
        assert not selects(term["labelSelector"], labels["agent"])

    def test_ledger_and_witness_lie_in_claims_of_their_own(self) -> None:
        trainer = named(rendered("silo", "cpu"), "StatefulSet", "north-silo-trainer")
        claims = [one["metadata"]["name"] for one in trainer["spec"]["volumeClaimTemplates"]]
        assert claims == ["trainer", "witness"]
        mounts = trainer["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
        paths = {mount["name"]: mount["mountPath"] for mount in mounts}
        assert paths["trainer"] == "/var/lib/consilium/silo/trainer"
        assert paths["witness"] == "/var/lib/consilium/silo/witness"

    def test_the_agent_has_one_way_out_and_a_resolver(self) -> None:
        manifests = rendered("silo", "cpu")
        labels = dict(templates(manifests))["north-silo-agent"]["metadata"]["labels"]
        policies = policies_for(manifests, labels)
        assert set(policies) == {
            f"north-silo-{one}" for one in ("deny-all", "to-coordinator", "to-dns")
        }
        (out,) = policies["north-silo-to-coordinator"]["egress"]
        assert [port["port"] for port in out["ports"]] == [7443, 7444]
        (names,) = policies["north-silo-to-dns"]["egress"]
        assert {port["port"] for port in names["ports"]} == {53}
        assert names["to"]

    def test_behind_a_proxy_the_proxy_is_the_way_out(self) -> None:
        manifests = rendered("silo", "gpu")
        labels = dict(templates(manifests))["north-silo-agent"]["metadata"]["labels"]
        policies = policies_for(manifests, labels)
        assert "north-silo-to-coordinator" not in policies
        (out,) = policies["north-silo-to-proxy"]["egress"]
        assert out == {"ports": [{"port": 3128}], "to": [{"ipBlock": {"cidr": "10.0.0.8/32"}}]}
        (come,) = policies["north-silo-from-prometheus"]["ingress"]
        assert come["ports"] == [{"port": 9465}]
        assert come["from"]

    def test_the_password_of_the_proxy_comes_from_the_secret(self) -> None:
        agent = dict(templates(rendered("silo", "gpu")))["north-silo-agent"]["spec"]
        for container in containers(agent):
            values = {one["name"]: one.get("value") for one in container["env"]}
            assert values["CONSILIUM_PROXY"] == "@/run/secrets/proxy/url"
            mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
            assert mounts["proxy"] == "/run/secrets/proxy"

    def test_only_joining_sees_the_token_and_may_go_without(self) -> None:
        pod = dict(templates(rendered("silo", "existing")))["st-mary-agent"]["spec"]
        (join,) = pod["initContainers"]
        assert join["args"] == ["agent", "join", "@/run/secrets/join/token", "--if-missing"]
        (volume,) = [one["secret"] for one in pod["volumes"] if one["name"] == "join"]
        assert volume["items"] == [{"key": "st-mary", "path": "token"}]
        assert volume["optional"] is True
        assert "join" not in {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}

    def test_a_gpu_brings_its_image_its_node_and_its_runtime(self) -> None:
        manifests = rendered("silo", "gpu")
        pods = dict(templates(manifests))
        trainer = pods["north-silo-trainer"]["spec"]
        (container,) = trainer["containers"]
        assert container["image"] == "consilium-trainer-gpu:0.1.0"
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 2
        assert trainer["runtimeClassName"] == "nvidia"
        assert trainer["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
        assert trainer["tolerations"] == pods["north-silo-agent"]["spec"]["tolerations"]
        agent = pods["north-silo-agent"]["spec"]["containers"][0]
        assert "nvidia.com/gpu" not in agent["resources"]["limits"]
        plain = dict(templates(rendered("silo", "cpu")))["north-silo-trainer"]["spec"]
        assert "nvidia.com/gpu" not in plain["containers"][0]["resources"]["limits"]
        assert plain["containers"][0]["image"] == "consilium-trainer:0.1.0"

    def test_the_trainer_understands_the_rendered_silo_yaml(self) -> None:
        for values in ("cpu", "gpu"):
            text = named(rendered("silo", values), "ConfigMap", "north-silo")["data"]["silo.yaml"]
            settings = SiloSettings.model_validate(yaml.safe_load(text))
            assert str(settings.data.path).startswith("/data/")

    def test_helm_test_tries_the_trainers_wall_with_the_trainers_policies(self) -> None:
        manifests = rendered("silo", "cpu")
        pods = dict(templates(manifests))
        walled = policies_for(manifests, pods["north-silo-test-walled-in"]["metadata"]["labels"])
        trainer = policies_for(manifests, pods["north-silo-trainer"]["metadata"]["labels"])
        assert walled == trainer
        doctor = policies_for(manifests, pods["north-silo-test-doctor"]["metadata"]["labels"])
        assert doctor == policies_for(manifests, pods["north-silo-agent"]["metadata"]["labels"])
        for job in of_kind(manifests, "Job"):
            assert job["metadata"]["annotations"]["helm.sh/hook"] == "test"

    @pytest.mark.parametrize(
        ("override", "sentence"),
        [
            ("join: {existingSecret: ''}", "join.existingSecret is empty"),
            ("data: {existingClaim: ''}", "data.existingClaim is empty"),
            ("existingConfigMap: mine", "silo.yaml has one source"),
            ("settings: null", "settings is empty"),
            ("settings: {data: null}", "lacks `data` or `model`"),
            ("proxy: {url: 'http://p:1', existingSecret: x}", "there is one proxy"),
            ("proxy: {url: 'https://p:1'}", "must begin with http://"),
            ("proxy: {url: 'http://u:p@p:1'}", "proxy.existingSecret"),
            ("trainer: {gpu: {runtimeClassName: nvidia}}", "trainer.gpu.enabled is false"),
            ("trainer: {seccompProfile: {type: Localhost}}", "name the profile on the node"),
            ("trainer: {seccompProfile: {localhostProfile: x}}", "the type is not Localhost"),
            (
                "persistence: {trainer: {existingClaim: x}, witness: {existingClaim: x}}",
                "are one claim",
            ),
            ("persistence: {exchange: {existingClaim: patients}}", "for the trainer only"),
            ("proxy: {url: 'http://p:8080'}", "networkPolicy.proxy.port is 3128"),
            ("monitoring: {podMonitor: {enabled: true}}", "lets nobody read"),
            ("networkPolicy: {enabled: false}", "the trainer would have a network"),
            ("replicas: 2", "one vote and one ledger"),
            ("trainer: {podLabels: {app.kubernetes.io/component: agent}}", "policies go by it"),
            ("trainer: {resources: {limits: {cpu: null}}}", "cpu"),
            ("trainer: {image: {tag: latest}}", "tag"),
            ("trainer: {egress: true}", "egress"),
        ],
    )
    def test_values_that_cannot_work_are_refused(
        self, tmp_path: Path, override: str, sentence: str
    ) -> None:
        assert sentence in refusal(tmp_path, "silo", override)


class TestCoordinator:
    def test_with_sqlite_there_is_one_pod_with_a_claim_and_no_way_out(self) -> None:
        manifests = rendered("coordinator", "sqlite")
        (stateful,) = of_kind(manifests, "StatefulSet")
        assert stateful["spec"]["replicas"] == 1
        (claim,) = stateful["spec"]["volumeClaimTemplates"]
        assert claim["metadata"]["name"] == "home"
        assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
        assert not of_kind(manifests, "Deployment", "PodDisruptionBudget")
        policies = policies_for(manifests, stateful["spec"]["template"]["metadata"]["labels"])
        assert not any(one.get("egress") for one in policies.values())
        assert any("Egress" in one["policyTypes"] for one in policies.values())

    def test_with_postgres_there_are_replicas_that_share_and_spread(self) -> None:
        manifests = rendered("coordinator", "postgres")
        (deployment,) = of_kind(manifests, "Deployment")
        assert deployment["spec"]["replicas"] == 3
        assert deployment["spec"]["strategy"] == {"type": "Recreate"}
        (claim,) = of_kind(manifests, "PersistentVolumeClaim")
        assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
        assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        pod = deployment["spec"]["template"]
        homes = [one for one in pod["spec"]["volumes"] if one["name"] == "home"]
        assert homes[0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        (budget,) = of_kind(manifests, "PodDisruptionBudget")
        assert budget["spec"]["maxUnavailable"] == 1
        spread = pod["spec"]["topologySpreadConstraints"]
        assert {one["topologyKey"] for one in spread} == {
            "kubernetes.io/hostname",
            "topology.kubernetes.io/zone",
        }
        for one in spread:
            assert selects(one["labelSelector"], pod["metadata"]["labels"])

    def test_each_flow_has_its_policy(self) -> None:
        manifests = rendered("coordinator", "postgres")
        labels = dict(templates(manifests))["north-coordinator"]["metadata"]["labels"]
        policies = {
            name.removeprefix("north-coordinator-"): one
            for name, one in policies_for(manifests, labels).items()
        }
        assert policies.pop("deny-all")["policyTypes"] == ["Ingress", "Egress"]
        flows = {
            name: [
                (
                    sorted(port["port"] for port in rule["ports"]),
                    bool(rule.get("from") or rule.get("to")),
                )
                for rule in (*one.get("ingress", []), *one.get("egress", []))
            ]
            for name, one in policies.items()
        }
        assert flows == {
            "from-silos": [([7443, 7444], True)],
            "from-prometheus": [([9464], True)],
            "from-test": [([7443, 7444], True)],
            "to-database": [([5432], True)],
            "to-dns": [([53, 53], True)],
        }

    def test_no_password_stands_in_an_object(self) -> None:
        pod = dict(templates(rendered("coordinator", "postgres")))["north-coordinator"]["spec"]
        for container in containers(pod):
            variables = {one["name"]: one for one in container["env"]}
            reference = variables["PGPASSWORD"]["valueFrom"]["secretKeyRef"]
            assert reference == {"name": "consilium-database", "key": "password"}
            assert variables["PGSSLMODE"]["value"] == "verify-full"
        assert not of_kind(rendered("coordinator", "postgres"), "Secret")

    @pytest.mark.parametrize(
        "values", [values for chart, values in MATRIX if chart == "coordinator"]
    )
    def test_the_coordinator_understands_its_settings(self, values: str) -> None:
        manifests = rendered("coordinator", values)
        (text,) = [
            one["data"]["coordinator.yaml"]
            for one in of_kind(manifests, "ConfigMap")
            if "coordinator.yaml" in one["data"]
        ]
        settings = CoordinatorSettings.model_validate(yaml.safe_load(text))
        (service,) = [
            one
            for one in of_kind(manifests, "Service")
            if {port["name"] for port in one["spec"]["ports"]} == {"services", "enrolment"}
        ]
        ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
        assert ports == {"services": settings.port, "enrolment": settings.enrolment_port}
        assert settings.metrics_listen == "0.0.0.0"
        (init,) = [
            one["initContainers"][0]["args"]
            for one in (template["spec"] for _, template in templates(manifests))
            if "initContainers" in one
        ]
        assert [word for word in init if word.startswith("--host=")] == [
            f"--host={host}" for host in settings.hosts
        ]
        assert f"--consortium={settings.consortium}" in init

    def test_settings_are_mounted_where_serve_reads_them_and_not_where_init_writes_them(
        self,
    ) -> None:
        pod = dict(templates(rendered("coordinator", "sqlite")))["north-coordinator"]["spec"]
        settings = "/var/lib/consilium/coordinator/coordinator.yaml"
        init, serve = pod["initContainers"][0], pod["containers"][0]
        assert settings in {mount["mountPath"] for mount in serve["volumeMounts"]}
        assert settings not in {mount["mountPath"] for mount in init["volumeMounts"]}

    def test_an_admin_in_the_pod_finds_the_coordinator_at_home(self) -> None:
        pod = dict(templates(rendered("coordinator", "postgres")))["north-coordinator"]["spec"]
        # Of the two hosts one is an address, which needs no resolving.
        assert pod["hostAliases"] == [{"ip": "127.0.0.1", "hostnames": ["coordinator.example.org"]}]

    def test_and_past_the_policy_where_there_is_only_an_address(self, tmp_path: Path) -> None:
        outcome = overridden(tmp_path, "coordinator", "hosts: [203.0.113.5, c.example.org]")
        manifests = tuple(yaml.safe_load_all(outcome.stdout))
        labels = dict(templates(manifests))["north-coordinator"]["metadata"]["labels"]
        (out,) = policies_for(manifests, labels)["north-coordinator-to-itself"]["egress"]
        assert out["ports"] == [{"port": 7443}]
        assert out["to"][0] == {"ipBlock": {"cidr": "203.0.113.5/32"}}
        assert selects(out["to"][1]["podSelector"], labels)

    @pytest.mark.parametrize(
        ("values", "issuer"),
        [
            ("cert-manager", ("Issuer", "north-coordinator")),
            ("postgres", ("ClusterIssuer", "heart-authority")),
        ],
    )
    def test_a_certificate_of_cert_manager_is_one_the_coordinator_takes(
        self, tmp_path: Path, values: str, issuer: tuple[str, str]
    ) -> None:
        manifests = rendered("coordinator", values)
        (asked,) = of_kind(manifests, "Certificate")
        spec = asked["spec"]
        assert (spec["issuerRef"]["kind"], spec["issuerRef"]["name"]) == issuer
        own = {one["metadata"]["name"]: one["spec"] for one in of_kind(manifests, "Issuer")}
        expected = {"north-coordinator": {"ca": {"secretName": "consilium-authority"}}}
        assert own == (expected if issuer[0] == "Issuer" else {})
        assert spec["usages"] == ["digital signature", "server auth"]
        assert (spec["privateKey"]["algorithm"], spec["privateKey"]["size"]) == ("ECDSA", 256)
        text = named(manifests, "ConfigMap", "north-coordinator")["data"]["coordinator.yaml"]
        settings = CoordinatorSettings.model_validate(yaml.safe_load(text))
        hours = int(spec["duration"].removesuffix("h"))
        assert hours * 3600 == settings.server_certificate_lifetime

        # As its CA issuer would sign it, found where the pod mounts it.
        pod = dict(templates(manifests))["north-coordinator"]["spec"]
        serve = pod["containers"][0]
        mounts = {mount["mountPath"]: mount for mount in serve["volumeMounts"]}
        mount = mounts[settings.server_certificate_folder]
        assert mount["readOnly"] is True
        assert "subPath" not in mount
        (volume,) = [one for one in pod["volumes"] if one["name"] == mount["name"]]
        assert volume["secret"]["secretName"] == spec["secretName"]
        home = CoordinatorHome(tmp_path / "home")
        Authority.create(home.authority, settings.consortium, NOW - DAY)
        Order(
            names=tuple(spec["dnsNames"]),
            addresses=tuple(spec["ipAddresses"]),
            uris=tuple(spec["uris"]),
        ).bring(tmp_path / "mounted", home.authority)
        here = settings.model_copy(update={"server_certificate_folder": str(tmp_path / "mounted")})
        assert ensure_leaf(home, here, Authorities.load(home.authority), NOW)

    def test_a_certificate_made_beforehand_is_mounted_and_nothing_asks_for_one(self) -> None:
        manifests = rendered("coordinator", "existing")
        assert not of_kind(manifests, "Certificate", "Issuer")
        pod = dict(templates(manifests))["consortium"]["spec"]
        secrets = [one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one]
        assert secrets == ["consilium-server"]
        # Its key is for the server alone.
        init = pod["initContainers"][0]["volumeMounts"]
        assert "/run/secrets/server" not in {mount["mountPath"] for mount in init}
        plain = rendered("coordinator", "sqlite")
        text = named(plain, "ConfigMap", "north-coordinator")["data"]["coordinator.yaml"]
        assert "server_certificate_folder" not in text

    def test_low_ports_come_with_the_sysctl_and_others_without(self) -> None:
        low = dict(templates(rendered("coordinator", "existing")))["consortium"]["spec"]
        assert low["securityContext"]["sysctls"][0]["value"] == "1"
        high = dict(templates(rendered("coordinator", "sqlite")))["north-coordinator"]["spec"]
        assert "sysctls" not in high["securityContext"]

    def test_a_digest_decides_over_the_tag(self) -> None:
        pod = dict(templates(rendered("coordinator", "existing")))["consortium"]["spec"]
        image = "registry.example.org/consilium/consilium-coordinator@sha256:"
        assert all(one["image"].startswith(image) for one in containers(pod))
        assert pod["imagePullSecrets"] == [{"name": "registry"}]

    def test_a_node_port_is_the_port_silos_dial(self) -> None:
        service = named(rendered("coordinator", "node-port"), "Service", "north-coordinator")
        assert [port["nodePort"] for port in service["spec"]["ports"]] == [30443, 30444]
        assert not of_kind(rendered("coordinator", "node-port"), "NetworkPolicy")

    def test_alerts_point_to_the_consortiums_runbooks(self) -> None:
        (rules,) = of_kind(rendered("coordinator", "postgres"), "PrometheusRule")
        alerts = [
            one for group in rules["spec"]["groups"] for one in group["rules"] if "alert" in one
        ]
        assert alerts
        for alert in alerts:
            url = alert["annotations"]["runbook_url"]
            assert re.fullmatch(
                r"https://wiki\.example\.org/consilium/docs/runbooks/[a-z-]+\.md", url
            )

    def test_every_dashboard_is_provisioned_as_it_is(self) -> None:
        maps = {
            name: text
            for one in of_kind(rendered("coordinator", "postgres"), "ConfigMap")
            if one["metadata"]["labels"].get("grafana_dashboard") == "1"
            for name, text in one["data"].items()
        }
        files = (CHARTS / "coordinator" / "files" / "dashboards").glob("*.json")
        assert {name: text.strip() for name, text in maps.items()} == {
            file.name: file.read_text().strip() for file in files
        }

    @pytest.mark.parametrize(
        ("override", "sentence"),
        [
            ("hosts: []", "hosts is empty"),
            ("replicas: 2", "SQLite serves one coordinator only"),
            ("database: {url: 'mysql://db/x'}", "must begin with postgresql+psycopg://"),
            ("database: {url: 'postgresql+psycopg://u:p@db/x'}", "database.url holds a password"),
            ("database: {existingSecret: x}", "database.url is empty"),
            (
                "{replicas: 2, database: {url: 'postgresql+psycopg://u@db/x'}, persistence: {accessMode: ReadWriteOnce}}",
                "must be ReadWriteMany",
            ),
            ("ports: {enrolment: 7443}", "must differ"),
            ("service: {type: NodePort}", "not between 30000 and 32767"),
            ("service: {loadBalancerClass: x}", "for service.type LoadBalancer"),
            (
                "monitoring: {serviceMonitor: {enabled: true}, podMonitor: {enabled: true}}",
                "stored twice",
            ),
            ("monitoring: {serviceMonitor: {enabled: true}}", "lets nobody read"),
            ("serverCertificate: {certManager: {enabled: true}}", "needs an issuer"),
            (
                "serverCertificate: {certManager: {enabled: true, authoritySecret: x, issuerRef: {name: y}}}",
                "has one issuer",
            ),
            (
                "serverCertificate: {existingSecret: x, certManager: {enabled: true, authoritySecret: x}}",
                "shows one certificate",
            ),
            (
                "serverCertificate: {certManager: {authoritySecret: x}}",
                "but enabled is false",
            ),
            (
                "{settings: {serverCertificateLifetime: 59m}, serverCertificate: {certManager: {enabled: true, authoritySecret: x}}}",
                "nothing shorter than 1h",
            ),
            ("certManager: {enabled: true}", "called serverCertificate.certManager"),
            ("ingress: {enabled: true}", "an Ingress ends TLS"),
            ("replicaCount: 1", "called replicas"),
            ("podLabels: {app.kubernetes.io/name: other}", "policies go by it"),
            ("settings: {limits: {calls: {per_minute: 1}}}", "limits"),
            ("persistance: {size: 1Gi}", "persistance"),
        ],
    )
    def test_values_that_cannot_work_are_refused(
        self, tmp_path: Path, override: str, sentence: str
    ) -> None:
        assert sentence in refusal(tmp_path, "coordinator", override)
