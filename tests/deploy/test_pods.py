"""The rendered pods at work: coordinator, agent and trainer, played by podman, until a federation of one has voted.

HELM renders (`helm` by default), CONTAINERS plays: `podman`, or a program that has it as a command. The images must be built.

What podman 4.3 is not a cluster for, and how this file stands in for one:
- it plays pods: a StatefulSet or Job becomes its pod, and claim templates become claims, which are volumes of podman;
- ConfigMaps and Secrets become files of the host, as a kubelet would lay them out; annotations are left out (it takes 63 characters);
- names are told to pods as host aliases; there is no Service, and **no NetworkPolicy**: the trainer is played with `--network none`,
  which shows what it does without a network and not that a cluster takes its network away (`helm test` shows that);
- probes do not fire without systemd: they are run here, by hand, in the containers.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from service import eventually

from wire import __version__

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]

CHARTS = Path(__file__).parents[2] / "helm"
HELM = os.environ.get("HELM", "helm")
CONTAINERS = shlex.split(os.environ.get("CONTAINERS", "podman"))
TAG = os.environ.get("TAG", __version__)
HOST = "coordinator.pods.test"
PYTHON = "/opt/consilium/bin/python"

Manifest = dict[str, Any]

COORDINATOR = f"hosts: [{HOST}]\nimage: {{tag: {TAG}}}\nsettings: {{lease: 5s}}\n"
SILO = f"""
join: {{existingSecret: pods-join}}
data: {{existingClaim: pods-patients}}
agent: {{image: {{tag: {TAG}}}}}
trainer: {{image: {{tag: {TAG}}}}}
settings:
  data: {{path: /data/patients.csv, label: state}}
  model: decision_tree
  policy: {{approve: within_limits, max_rounds: 5}}
"""
TASK = """
name: trial
public_set: points
labels: [ill, well]
rounds: {max_rounds: 2, deadline: 120s, grace: 0s, quorum: 1}
"""
LOOK = """
import json, os, socket
status = dict(line.split(":", 1) for line in open("/proc/1/status").read().splitlines())
found = {name: status[name].split() for name in ("Uid", "Gid", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp")}
found["written"] = []
for folder in ("/", "/opt/consilium", "/etc", "/var/lib/consilium", "/data", "/tmp"):
    try:
        # Podman's volumes for emptyDir are shared by pods whose volume has the same name.
        open(f"{folder}/probe-{os.getuid()}", "w").close()
        found["written"].append(folder)
    except OSError:
        pass
found["interfaces"] = [name for _, name in socket.if_nameindex()]
found["data"] = sorted(os.listdir("/data")) if os.path.isdir("/data") else None
found["ways_out"] = []
for address in ("169.254.169.254", "192.0.2.1"):
    try:
        socket.create_connection((address, 80), 2).close()
        found["ways_out"].append(address)
    except OSError as error:
        found["ways_out"].append(error.errno)
print(json.dumps(found))
"""
ENETUNREACH = 101


def program() -> list[str]:
    """podman itself, or as a command of another program; Docker's engine plays no pods."""
    last = Path(CONTAINERS[-1]).name
    if last == "docker":
        return ["podman"]
    return CONTAINERS if last == "podman" else [*CONTAINERS, "podman"]


def run(*arguments: object, check: bool = True, **more: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*map(str, arguments)], capture_output=True, text=True, check=False, timeout=300, **more
    )
    assert not check or done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done


def podman(*arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    return run(*program(), *arguments, **more)


class Cluster:
    """Plays what the charts render, and forgets it all at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pods: list[str] = []
        self._claims: set[str] = set()
        self.secrets: dict[str, dict[str, str]] = {}
        self.aliases: dict[str, str] = {}

    def install(self, release: str, chart: str, values: str) -> tuple[Manifest, ...]:
        """The objects of a release; its ConfigMaps are known to pods from now on."""
        file = self._folder / f"{release}.yaml"
        file.write_text(values)
        text = run(HELM, "template", release, CHARTS / chart, "-f", file).stdout
        manifests = tuple(one for one in yaml.safe_load_all(text) if one)
        for one in manifests:
            if one["kind"] == "ConfigMap":
                self.secrets[one["metadata"]["name"]] = one["data"]
        return manifests

    def claim(self, name: str, files: dict[str, str]) -> None:
        """A claim that somebody filled beforehand."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path, text in files.items():
                entry = tarfile.TarInfo(path)
                entry.size, entry.mode = len(text), 0o444
                archive.addfile(entry, io.BytesIO(text.encode()))
        archive_file = self._folder / f"{name}.tar"
        archive_file.write_bytes(packed.getvalue())
        podman("volume", "create", name)
        self._claims.add(name)
        podman("volume", "import", name, archive_file)

    def play(self, owner: Manifest, *options: str) -> str:
        """Starts the pod of a StatefulSet or Job and returns its name; init containers have ended well by then."""
        pod = self._pod(owner)
        name = str(pod["metadata"]["name"])
        file = self._folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(pod))
        self._pods.append(name)
        podman("kube", "play", *options, file)
        return name

    def remove(self, pod: str) -> None:
        podman("pod", "rm", "--force", "--time", "40", pod, check=False)

    def close(self) -> None:
        for pod in reversed(self._pods):
            self.remove(pod)
        for claim in self._claims:
            podman("volume", "rm", "--force", claim, check=False)

    def _pod(self, owner: Manifest) -> Manifest:
        name, template = f"{owner['metadata']['name']}-0", owner["spec"]["template"]
        spec = json.loads(json.dumps(template["spec"]))
        for claim in owner["spec"].get("volumeClaimTemplates", []):
            volume = claim["metadata"]["name"]
            source = {"claimName": f"{volume}-{name}"}
            spec.setdefault("volumes", []).append({"name": volume, "persistentVolumeClaim": source})
        for volume in spec.get("volumes", []):
            if "persistentVolumeClaim" in volume:
                self._claims.add(volume["persistentVolumeClaim"]["claimName"])
            elif "configMap" in volume or "secret" in volume:
                self._lay_out(name, spec, volume)
        for host, address in self.aliases.items():
            spec.setdefault("hostAliases", []).append({"ip": address, "hostnames": [host]})
        metadata = {
            "name": name,
            "labels": template["metadata"]["labels"],
            # Left where it ended: podman 4.3 sometimes removes it too early and fails.
            "annotations": {"io.podman.annotations.init.container.type": "always"},
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def _lay_out(self, pod: str, spec: Manifest, volume: Manifest) -> None:
        """A volume of files, in place of a ConfigMap or Secret; one file, where one is mounted by its subPath."""
        source = volume.pop("configMap", None) or volume.pop("secret")
        content = self.secrets.get(source.get("name") or source["secretName"])
        assert content is not None or source.get("optional"), source
        keys = {one["key"]: one["path"] for one in source.get("items", [])}
        folder = self._folder / pod / volume["name"]
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for key, text in (content or {}).items():
            file = folder / keys.get(key, key)
            file.write_text(text)
            os.chown(file, 0, spec["securityContext"]["fsGroup"])
            file.chmod(source.get("defaultMode", 0o644))
        mounts = [
            mount
            for container in (*spec.get("initContainers", []), *spec["containers"])
            for mount in container.get("volumeMounts", [])
            if mount["name"] == volume["name"]
        ]
        single = {mount.pop("subPath") for mount in mounts if "subPath" in mount}
        path = folder / single.pop() if single else folder
        volume["hostPath"] = {"path": str(path)}


class Pods:
    """One consortium and one hospital, each container by its name."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.consortium = cluster.install("pods", "coordinator", COORDINATOR)
        self.hospital = cluster.install("pods", "silo", SILO)
        rows = ["a,b,state", *(f"{a:.3f},{b:.3f},{state(a, b)}" for a, b in points(1))]
        cluster.claim("pods-patients", {"patients.csv": "\n".join(rows) + "\n"})
        pod = cluster.play(workload(self.consortium, "pods-coordinator"))
        self.coordinator = f"{pod}-coordinator"
        infra = podman("pod", "inspect", pod, "--format", "{{.InfraContainerID}}").stdout.strip()
        networks = json.loads(podman("inspect", infra).stdout)[0]["NetworkSettings"]["Networks"]
        (network,) = networks.values()
        self.until_probed(self.coordinator, "coordinator", "probe")
        told = self.consilium(self.coordinator, "silo", "register", "north", "--json").stdout
        self.token = str(json.loads(told)["join_token"])
        cluster.secrets["pods-join"] = {"token": self.token}
        cluster.aliases = {HOST: network["IPAddress"]}
        self.trainer = (
            cluster.play(workload(self.hospital, "pods-silo-trainer"), "--network", "none")
            + "-trainer"
        )
        self.agent = cluster.play(workload(self.hospital, "pods-silo-agent")) + "-agent"

    def consilium(
        self, container: str, *words: str, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        return podman("exec", container, "consilium", *words, check=check)

    def until_probed(self, container: str, *words: str) -> None:
        eventually(
            f"{words} in {container}",
            lambda: self.consilium(container, *words, check=False).returncode == 0,
        )

    def put(self, container: str, path: str, text: str) -> None:
        """A file in the container's scratch volume."""
        write = f"import sys; open({path!r}, 'w').write(sys.stdin.read())"
        podman("exec", "--interactive", container, PYTHON, "-c", write, input=text)

    def look(self, container: str) -> dict[str, Any]:
        """How a container finds itself."""
        found: dict[str, Any] = json.loads(podman("exec", container, PYTHON, "-c", LOOK).stdout)
        return found


def workload(manifests: tuple[Manifest, ...], name: str) -> Manifest:
    return next(
        one
        for one in manifests
        if one["metadata"]["name"] == name and one["kind"] in ("StatefulSet", "Job")
    )


def points(seed: int, rows: int = 60) -> list[tuple[float, float]]:
    drawn = np.random.default_rng(seed).normal(size=(rows, 2))
    return [(float(a), float(b)) for a, b in drawn]


def state(a: float, b: float) -> str:
    return "ill" if a + b > 0 else "well"


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield Pods(cluster)
    finally:
        cluster.close()


def test_every_probe_of_every_container_passes(pods: Pods) -> None:
    owners = {
        pods.coordinator: workload(pods.consortium, "pods-coordinator"),
        pods.trainer: workload(pods.hospital, "pods-silo-trainer"),
        pods.agent: workload(pods.hospital, "pods-silo-agent"),
    }
    for container, owner in owners.items():
        (described,) = owner["spec"]["template"]["spec"]["containers"]
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            pods.until_probed(container, *described[kind]["exec"]["command"][1:])


@pytest.mark.parametrize("which", ["coordinator", "agent", "trainer"])
def test_it_runs_as_nobody_in_particular_and_writes_only_where_it_may(
    pods: Pods, which: str
) -> None:
    found = pods.look(getattr(pods, which))
    user, group = {
        "coordinator": ("10001", "10001"),
        "agent": ("10002", "10003"),
        "trainer": ("10001", "10003"),
    }[which]
    assert set(found["Uid"]) == {user}
    assert set(found["Gid"]) == {group}
    assert int(found["CapEff"][0], 16) == int(found["CapBnd"][0], 16) == 0
    assert found["NoNewPrivs"] == ["1"]
    assert found["written"] == ["/tmp"]


def test_the_trainer_has_data_and_no_way_out_and_the_agent_the_reverse(pods: Pods) -> None:
    trainer, agent = pods.look(pods.trainer), pods.look(pods.agent)
    assert trainer["data"] == ["patients.csv"]
    assert trainer["interfaces"] == ["lo"]
    assert trainer["ways_out"] == [ENETUNREACH] * 2
    assert not agent["data"]
    assert len(agent["interfaces"]) > 1


def test_a_task_is_voted_on_to_its_end(pods: Pods) -> None:
    rows = ["a,b", *(f"{a:.3f},{b:.3f}" for a, b in points(0))]
    pods.put(pods.coordinator, "/tmp/points.csv", "\n".join(rows) + "\n")
    pods.put(pods.coordinator, "/tmp/task.yaml", TASK)
    pods.consilium(pods.coordinator, "public-set", "add", "points", "/tmp/points.csv")
    pods.consilium(pods.coordinator, "task", "create", "-f", "/tmp/task.yaml")
    pods.consilium(pods.coordinator, "task", "start", "trial")

    def finished() -> bool:
        shown = pods.consilium(pods.coordinator, "task", "show", "trial", "--json").stdout
        return "FINISHED" in shown

    eventually("the end of the task", finished)
    ledger = pods.consilium(pods.trainer, "agent", "ledger").stdout
    assert "trial" in ledger


def test_helm_test_passes(pods: Pods) -> None:
    """The hooks' own containers; what they need a cluster for is told to them."""
    pods.cluster.aliases["pods-coordinator"] = pods.cluster.aliases[HOST]
    for manifests, job in (
        (pods.consortium, "coordinator-test"),
        (pods.hospital, "silo-test-doctor"),
    ):
        owner = workload(manifests, f"pods-{job}")
        pod = pods.cluster.play(owner)
        (described,) = owner["spec"]["template"]["spec"]["containers"]
        container = f"{pod}-{described['name']}"
        assert podman("wait", container).stdout.strip() == "0", podman("logs", container).stdout


def test_the_token_is_redeemed_once_and_the_identity_outlives_pod_and_secret(pods: Pods) -> None:
    again = pods.consilium(
        pods.agent, "agent", "join", pods.token, "--home", "/tmp/other", check=False
    )
    assert again.returncode == 1
    assert "TOKEN_USED" in again.stdout + again.stderr

    def fingerprint() -> str:
        path = "/var/lib/consilium/silo/identity/certificate.pem"
        return podman("exec", pods.agent, "cat", path).stdout

    before = fingerprint()
    pods.cluster.remove(pods.agent.removesuffix("-agent"))
    del pods.cluster.secrets["pods-join"]
    pods.cluster.play(workload(pods.hospital, "pods-silo-agent"))
    pods.until_probed(pods.agent, "agent", "probe", "--connected")
    assert fingerprint() == before


def test_each_ends_well_within_its_grace(pods: Pods) -> None:
    owners = {
        pods.agent: workload(pods.hospital, "pods-silo-agent"),
        pods.trainer: workload(pods.hospital, "pods-silo-trainer"),
        pods.coordinator: workload(pods.consortium, "pods-coordinator"),
    }
    for container, owner in owners.items():
        grace = owner["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        podman("stop", "--time", grace, container)
        code = podman("inspect", container, "--format", "{{.State.ExitCode}}").stdout.strip()
        assert code == "0", (container, podman("logs", container).stdout[-2000:])
