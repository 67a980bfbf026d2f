"""The consortium's chart: SQLite or PostgreSQL, one policy per flow, certificates, settings, alerts and dashboards."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml
from foreign_leaf import DAY, NOW, Order
from rendering import (
    CHARTS,
    MATRIX,
    changed,
    containers,
    named,
    of_kind,
    overridden,
    policies_for,
    refusal,
    rendered,
    selects,
    templates,
)

from coordinator.pki.authority import Authority
from coordinator.pki.certificate_keeper import ensure_leaf
from coordinator.pki.rotation import Authorities
from coordinator.settings import CoordinatorHome, CoordinatorSettings

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(600)]


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
            assert one["nodeTaintsPolicy"] == "Honor"
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
            "to-dns": [([53, 53, 5353, 5353], True)],
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
        assert settings.listen == settings.metrics_listen == "0.0.0.0"
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

    @pytest.mark.parametrize(("address", "bits"), [("203.0.113.5", 32), ("2001:db8::10", 128)])
    def test_and_past_the_policy_where_there_is_only_an_address(
        self, tmp_path: Path, address: str, bits: int
    ) -> None:
        manifests = changed(tmp_path, "coordinator", f"hosts: ['{address}', c.example.org]")
        labels = dict(templates(manifests))["north-coordinator"]["metadata"]["labels"]
        (out,) = policies_for(manifests, labels)["north-coordinator-to-itself"]["egress"]
        assert out["ports"] == [{"port": 7443}]
        assert out["to"][0] == {"ipBlock": {"cidr": f"{address}/{bits}"}}
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

    def test_a_node_port_is_the_port_silos_dial_and_every_node_answers(self) -> None:
        service = named(rendered("coordinator", "node-port"), "Service", "north-coordinator")
        assert [port["nodePort"] for port in service["spec"]["ports"]] == [30443, 30444]
        assert service["spec"]["externalTrafficPolicy"] == "Cluster"
        balanced = named(rendered("coordinator", "postgres"), "Service", "north-coordinator")
        assert balanced["spec"]["externalTrafficPolicy"] == "Local"
        assert not of_kind(rendered("coordinator", "node-port"), "NetworkPolicy")

    @pytest.mark.parametrize(
        ("url", "running"),
        [("postgresql+psycopg://u@db/x", "StatefulSet"), ("", "Deployment")],
    )
    def test_a_running_consortium_is_not_left_for_an_empty_database(
        self, tmp_path: Path, url: str, running: str
    ) -> None:
        """A copy of the chart in which `lookup` finds what it is asked for; without a cluster it finds nothing."""
        shutil.copytree(CHARTS / "coordinator", tmp_path / "coordinator")
        checks = tmp_path / "coordinator" / "templates" / "checks.yaml"
        asked = f'(eq (list "apps/v1" $other .Release.Namespace $name | join " ") "apps/v1 {running} default north-coordinator")'
        text = checks.read_text()
        assert text.count('lookup "apps/v1" $other .Release.Namespace $name') == 1
        checks.write_text(text.replace('lookup "apps/v1" $other .Release.Namespace $name', asked))
        override = f"database: {{url: '{url}'}}"
        outcome = overridden(tmp_path, "coordinator", override, charts=tmp_path)
        assert outcome.returncode != 0
        assert f"{running} north-coordinator runs with" in outcome.stderr
        assert "would found a second consortium" in outcome.stderr
        assert changed(tmp_path, "coordinator", override)

    @pytest.mark.parametrize(
        ("more", "mode"),
        [
            ("", "ReadWriteMany"),
            ("replicas: 3", "ReadWriteMany"),
            ("persistence: {accessMode: ReadWriteOnce}", "ReadWriteOnce"),
        ],
    )
    def test_a_claim_beside_postgres_stays_as_it_is_when_replicas_change(
        self, tmp_path: Path, more: str, mode: str
    ) -> None:
        override = f"database: {{url: 'postgresql+psycopg://u@db/x'}}\n{more}"
        (claim,) = of_kind(changed(tmp_path, "coordinator", override), "PersistentVolumeClaim")
        assert claim["spec"]["accessModes"] == [mode]

    @pytest.mark.parametrize(
        ("url", "port"),
        [
            ("u@db/x", 5432),
            ("u@db:6432/x", 6432),
            ("u@[2001:db8::7]/x", 5432),
            ("u@[2001:db8::7]:6432/x", 6432),
            ("u@/x?host=a:6432&host=b:6432", 6432),
            ("u@db/x?port=6432", 6432),
        ],
    )
    def test_the_port_of_the_database_is_the_port_of_its_policy(
        self, tmp_path: Path, url: str, port: int
    ) -> None:
        def values(allowed: int) -> str:
            policy = f"networkPolicy: {{database: {{port: {allowed}}}}}"
            return f"database: {{url: 'postgresql+psycopg://{url}'}}\n{policy}"

        assert changed(tmp_path, "coordinator", values(port))
        assert f"leads to port {port}, but" in refusal(tmp_path, "coordinator", values(1))

    def test_without_policies_the_database_may_be_at_any_port(self, tmp_path: Path) -> None:
        override = (
            "{database: {url: 'postgresql+psycopg://u@db:6432/x'}, networkPolicy: {enabled: false}}"
        )
        assert of_kind(changed(tmp_path, "coordinator", override), "Deployment")

    def test_the_pod_may_listen_on_ipv6_too(self, tmp_path: Path) -> None:
        manifests = changed(tmp_path, "coordinator", "listen: '::'")
        text = named(manifests, "ConfigMap", "north-coordinator")["data"]["coordinator.yaml"]
        settings = CoordinatorSettings.model_validate(yaml.safe_load(text))
        assert settings.listen == settings.metrics_listen == "::"

    @pytest.mark.parametrize(("seconds", "failures"), [(300, 60), (3601, 721)])
    def test_a_slow_start_is_waited_for(self, tmp_path: Path, seconds: int, failures: int) -> None:
        manifests = changed(tmp_path, "coordinator", f"startupSeconds: {seconds}")
        pod = dict(templates(manifests))["north-coordinator"]["spec"]
        probe = pod["containers"][0]["startupProbe"]
        assert (probe["failureThreshold"], probe["periodSeconds"]) == (failures, 5)

    def test_helm_test_runs_where_the_coordinator_may(self) -> None:
        pods = dict(templates(rendered("coordinator", "existing")))
        for key in ("nodeSelector", "tolerations", "priorityClassName", "imagePullSecrets"):
            assert pods["consortium-test"]["spec"][key] == pods["consortium"]["spec"][key]

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
            ("database: {url: 'postgresql+psycopg://u:p/w@db/x'}", "database.url holds a password"),
            ("database: {url: 'postgresql+psycopg://u@w:p@db/x'}", "database.url holds a password"),
            (
                "database: {url: 'postgresql+psycopg://u@db/x?password=p'}",
                "database.url holds a password",
            ),
            (
                "database: {url: 'postgresql+psycopg://u@db/x?sslmode=require&password=p'}",
                "database.url holds a password",
            ),
            ("database: {existingSecret: x}", "database.url is empty"),
            (
                "serviceAccount: {existingName: x, annotations: {a: b}}",
                "names one of yours",
            ),
            ("listen: 127.0.0.1", "listen"),
            ("startupSeconds: 0", "startupSeconds"),
            ("networkPolicy: {dns: {ports: []}}", "ports"),
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
