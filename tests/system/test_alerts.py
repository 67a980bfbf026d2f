"""The alert rules by Prometheus's own promtool: they load, they fire, and they keep quiet. Run by `make test-system`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

PROMETHEUS = Path(__file__).parents[2] / "docker" / "prometheus"
both_sides = pytest.mark.parametrize("side", ["consortium", "hospital"])


def promtool(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = ["promtool", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@both_sides
def test_the_rules_load(side: str) -> None:
    told = promtool("check", "rules", PROMETHEUS / side / "alerts.yaml")
    assert (told.returncode, "SUCCESS" in told.stdout) == (0, True), told.stderr


@both_sides
def test_prometheus_reads_what_compose_gives_it(tmp_path: Path, side: str) -> None:
    folder = PROMETHEUS / side
    settings = (folder / "prometheus.yml").read_text()
    assert "/etc/prometheus/alerts.yaml" in settings
    here = tmp_path / "prometheus.yml"
    here.write_text(settings.replace("/etc/prometheus", str(folder)))
    told = promtool("check", "config", here)
    assert told.returncode == 0, told.stdout + told.stderr


@both_sides
def test_every_alert_fires_and_keeps_quiet_as_its_scenes_say(side: str) -> None:
    told = promtool("test", "rules", PROMETHEUS / side / "alerts_test.yaml")
    assert (told.returncode, "SUCCESS" in told.stdout) == (0, True), told.stdout + told.stderr


@pytest.mark.parametrize(
    ("side", "written", "instead"),
    [
        ("consortium", "consilium_silo_connected) == 0", "consilium_silo_connected) == 2"),
        ("hospital", "for: 4h", "for: 3h"),
        ("consortium", "- 0.2\n        for: 5m", "- 0.3\n        for: 5m"),
        ("consortium", "max by (namespace, job, silo)", "max by (silo)"),
        ("consortium", "_refused_total[1h])) >= 3", "_refused_total[1h])) >= 30"),
        (
            "consortium",
            "and\n          max by (namespace, job, silo) (consilium_silo_connected)\n",
            "\n",
        ),
        (
            "consortium",
            'max_over_time(consilium_build_info{component="coordinator"}[1d])',
            "vector(0)",
        ),
    ],
)
def test_a_rule_that_was_changed_is_noticed(
    tmp_path: Path, side: str, written: str, instead: str
) -> None:
    for name in ("alerts.yaml", "alerts_test.yaml"):
        shutil.copy(PROMETHEUS / side / name, tmp_path)
    rules = (tmp_path / "alerts.yaml").read_text()
    assert written in rules
    (tmp_path / "alerts.yaml").write_text(rules.replace(written, instead))
    told = promtool("test", "rules", tmp_path / "alerts_test.yaml")
    assert (told.returncode, "FAILED" in told.stdout + told.stderr) == (1, True)
