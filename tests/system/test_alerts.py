"""The alert rules by Prometheus's own promtool: they load, they fire, and they keep quiet. Run by `make test-system`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

PROMETHEUS = Path(__file__).parents[2] / "docker" / "prometheus"


def promtool(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = ["promtool", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_rules_load() -> None:
    told = promtool("check", "rules", PROMETHEUS / "alerts.yaml")
    assert (told.returncode, "SUCCESS" in told.stdout) == (0, True), told.stderr


def test_every_alert_fires_and_keeps_quiet_as_its_scenes_say() -> None:
    told = promtool("test", "rules", PROMETHEUS / "alerts_test.yaml")
    assert (told.returncode, "SUCCESS" in told.stdout) == (0, True), told.stdout + told.stderr


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("consilium_silo_connected) == 0", "consilium_silo_connected) == 2"),
        ("for: 4h", "for: 3h"),
        ("- 0.2\n        for: 5m", "- 0.3\n        for: 5m"),
    ],
)
def test_a_rule_that_was_changed_is_noticed(tmp_path: Path, written: str, instead: str) -> None:
    for name in ("alerts.yaml", "alerts_test.yaml"):
        shutil.copy(PROMETHEUS / name, tmp_path)
    rules = (tmp_path / "alerts.yaml").read_text()
    assert written in rules
    (tmp_path / "alerts.yaml").write_text(rules.replace(written, instead))
    told = promtool("test", "rules", tmp_path / "alerts_test.yaml")
    assert (told.returncode, "FAILED" in told.stdout + told.stderr) == (1, True)
