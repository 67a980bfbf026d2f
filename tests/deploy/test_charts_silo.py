"""A hospital's chart: the trainer reaches nobody, the agent has one way out, the token is seen by joining alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from rendering import (
    MATRIX,
    changed,
    containers,
    named,
    of_kind,
    policies_for,
    refusal,
    rendered,
    selects,
    templates,
)

from silo_agent.trainer.settings import SiloSettings

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(600)]


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
        assert {port["port"] for port in names["ports"]} == {53, 5353}
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

    @pytest.mark.parametrize(("values", "name"), [("cpu", "north-silo"), ("existing", "st-mary")])
    def test_helm_test_tries_the_trainers_wall_as_the_trainer(self, values: str, name: str) -> None:
        """Policies, of this chart or not, go by labels, and some plug-ins' by accounts."""
        manifests = rendered("silo", values)
        pods = dict(templates(manifests))
        walled, trainer = pods[f"{name}-test-walled-in"], pods[f"{name}-trainer"]
        labels = {**trainer["metadata"]["labels"], "app.kubernetes.io/component": "walled-in"}
        assert walled["metadata"]["labels"] == labels
        assert policies_for(manifests, labels) == policies_for(
            manifests, trainer["metadata"]["labels"]
        )
        assert walled["spec"]["serviceAccountName"] == trainer["spec"]["serviceAccountName"]
        doctor = policies_for(manifests, pods[f"{name}-test-doctor"]["metadata"]["labels"])
        assert doctor == policies_for(manifests, pods[f"{name}-agent"]["metadata"]["labels"])
        for job in of_kind(manifests, "Job"):
            assert job["metadata"]["annotations"]["helm.sh/hook"] == "test"

    @pytest.mark.parametrize(
        ("values", "name", "rejects"),
        [("cpu", "north-silo", False), ("existing", "st-mary", True)],
    )
    def test_a_refusal_is_a_wall_only_if_the_plug_in_is_said_to_refuse(
        self, values: str, name: str, rejects: bool
    ) -> None:
        pod = dict(templates(rendered("silo", values)))[f"{name}-test-walled-in"]["spec"]
        _, _, script, patience, pause, *more = pod["containers"][0]["command"]
        assert more == (["refused-is-denied"] if rejects else [])
        assert "refused-is-denied" in script
        assert (float(patience), float(pause)) == (60, 2)
        # It learns the cluster's resolver, to try that way too.
        assert pod["dnsPolicy"] == "ClusterFirst"

    def test_the_trainer_has_an_account_of_its_own_that_nobody_annotates(
        self, tmp_path: Path
    ) -> None:
        role = "{eks.amazonaws.com/role-arn: 'arn:aws:iam::1:role/x'}"
        for override in (
            f"serviceAccount: {{annotations: {role}}}",
            "serviceAccount: {existingName: mine}",
        ):
            manifests = changed(tmp_path, "silo", override)
            users = {
                name: template["spec"]["serviceAccountName"]
                for name, template in templates(manifests)
            }
            agents = "mine" if "mine" in override else "north-silo"
            assert users == {
                "north-silo-agent": agents,
                "north-silo-test-doctor": agents,
                "north-silo-trainer": "north-silo-trainer",
                "north-silo-test-walled-in": "north-silo-trainer",
            }
            made = {
                one["metadata"]["name"]: one["metadata"].get("annotations")
                for one in of_kind(manifests, "ServiceAccount")
            }
            assert made.pop("north-silo-trainer") is None
            assert set(made) == {agents} - {"mine"}

    def test_pods_that_share_a_volume_share_a_level_of_selinux(self) -> None:
        pods = dict(templates(rendered("silo", "existing")))
        for name in ("st-mary-agent", "st-mary-trainer", "st-mary-test-doctor"):
            context = pods[name]["spec"]["securityContext"]
            # The restricted profile leaves no choice of type, user and role.
            assert context["seLinuxOptions"] == {"level": "s0:c123,c456"}
        for _, template in templates(rendered("silo", "cpu")):
            assert "seLinuxOptions" not in template["spec"]["securityContext"]

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
            (
                "persistence: {exchange: {existingClaim: patients}}",
                "data and persistence.exchange are one claim, patients",
            ),
            (
                "persistence: {exchange: {existingClaim: x}, trainer: {existingClaim: x}}",
                "persistence.exchange and persistence.trainer are one claim",
            ),
            (
                "persistence: {agent: {existingClaim: x}, witness: {existingClaim: x}}",
                "persistence.agent and persistence.witness are one claim",
            ),
            (
                "{models: {existingClaim: x}, persistence: {identity: {existingClaim: x}}}",
                "models and persistence.identity are one claim",
            ),
            # Also one that the chart itself will make.
            (
                "persistence: {trainer: {existingClaim: north-silo-exchange}}",
                "persistence.exchange and persistence.trainer are one claim",
            ),
            (
                "data: {existingClaim: agent-north-silo-agent-0}",
                "data and persistence.agent are one claim",
            ),
            (
                "serviceAccount: {existingName: x, annotations: {a: b}}",
                "names one of yours",
            ),
            ("proxy: {url: 'http://p:8080'}", "networkPolicy.proxy.port is 3128"),
            ("proxy: {url: 'http://p'}", "proxy.url has no port"),
            (
                "{proxy: {url: 'http://p:3128'}, networkPolicy: {coordinator: {to: [{ipBlock: {cidr: 192.0.2.1/32}}]}}}",
                "not used behind a proxy",
            ),
            (
                "{proxy: {existingSecret: x}, networkPolicy: {coordinator: {to: [{ipBlock: {cidr: 192.0.2.1/32}}]}}}",
                "not used behind a proxy",
            ),
            (
                "networkPolicy: {proxy: {to: [{ipBlock: {cidr: 192.0.2.1/32}}]}}",
                "neither proxy.url nor proxy.existingSecret",
            ),
            ("networkPolicy: {dns: {ports: []}}", "ports"),
            ("seLinuxOptions: {level: high}", "level"),
            ("seLinuxOptions: {type: spc_t}", "type"),
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
