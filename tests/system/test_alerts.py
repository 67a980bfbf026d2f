"""The alert rules by Prometheus's own promtool: they load, they fire, and they keep quiet. Run by `make test-system`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.system

REPOSITORY = Path(__file__).parents[2]
RULES = REPOSITORY / "docker" / "prometheus" / "alerts.yaml"


def promtool(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = ["promtool", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def agreement(silo: str, values: str, instance: str = "one", task: str = "flu") -> dict[str, str]:
    """What a coordinator's page showed of a silo, minute by minute."""
    series = f'consilium_silo_agreement_ratio{{task="{task}",silo="{silo}",instance="{instance}"}}'
    return {"series": series, "values": values}


def fires(
    folder: Path, minute: int, seen: list[dict[str, str]], expected: dict[tuple[str, str], str]
) -> str:
    """What promtool finds wrong, if at `minute` other silos than `expected` (task, silo: share) are alerted of."""
    firing = []
    for (task, silo), share in expected.items():
        summary = f"Silo {silo} disagrees with the consensus of task {task}."
        description = (
            f"Only {share} of the latest votes of {silo} in task {task} say what the consensus says, "
            "far fewer than of the other silos: its data, its model or its agent may be broken."
        )
        firing.append(
            {
                "exp_labels": {"task": task, "silo": silo, "severity": "warning"},
                "exp_annotations": {
                    "summary": summary,
                    "description": description,
                    "runbook_url": "docs/runbooks/silo-disagrees.md",
                },
            }
        )
    asked = {
        "eval_time": f"{minute}m",
        "alertname": "ConsiliumSiloDisagrees",
        "exp_alerts": firing,
    }
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": seen, "alert_rule_test": [asked]}],
    }
    file = folder / "test.yaml"
    file.write_text(json.dumps(test))
    told = promtool("test", "rules", file)
    return "" if told.returncode == 0 else told.stdout + told.stderr


GOOD = [agreement("north", "0.9x20"), agreement("south", "0.85x20"), agreement("west", "0.8x20")]


def test_the_rules_load() -> None:
    told = promtool("check", "rules", RULES)
    assert (told.returncode, "SUCCESS" in told.stdout) == (0, True), told.stderr


def test_every_alert_has_a_severity_and_a_runbook_with_all_four_parts() -> None:
    assert alerts()
    for alert in alerts():
        assert alert["labels"]["severity"] in ("warning", "critical"), alert["alert"]
        page = (REPOSITORY / alert["annotations"]["runbook_url"]).read_text()
        assert page.startswith(f"# {alert['alert']}\n")
        for part in ("Meaning", "Impact", "Diagnosis", "Mitigation"):
            assert f"\n## {part}\n" in page


def test_a_silo_far_below_the_others_is_alerted_of_after_five_minutes(tmp_path: Path) -> None:
    seen = [*GOOD, agreement("east", "0.4x20")]
    assert fires(tmp_path, 4, seen, {}) == ""
    assert fires(tmp_path, 6, seen, {("flu", "east"): "40%"}) == ""
    # And promtool would have noticed an alert that is missing.
    assert "FAILED" in fires(tmp_path, 6, seen, {})
    assert "FAILED" in fires(tmp_path, 6, GOOD, {("flu", "east"): "40%"})


@pytest.mark.parametrize(
    "seen",
    [
        GOOD,
        # Below the others, but not low.
        [*GOOD, agreement("east", "0.72x20")],
        # Low, but so are the others: hard rows, not a broken silo.
        [agreement(silo, "0.5x20") for silo in ("north", "south", "west")]
        + [agreement("east", "0.35x20")],
        # It agrees again before the five minutes are over.
        [*GOOD, agreement("east", "0.4x4 0.9x20")],
        # Others' tasks are no measure.
        [
            *GOOD,
            agreement("east", "0.4x20", task="stroke"),
            agreement("far", "0.4x20", task="stroke"),
        ],
        # One silo alone is its own median.
        [agreement("east", "0.1x20")],
    ],
    ids=["all-well", "not-low", "all-low", "recovered", "other-task", "alone"],
)
def test_no_alert_without_a_silo_that_stands_out(
    tmp_path: Path, seen: list[dict[str, str]]
) -> None:
    assert fires(tmp_path, 10, seen, {}) == ""


def test_two_coordinators_on_one_database_alert_once(tmp_path: Path) -> None:
    seen = [*GOOD, agreement("east", "0.25x20"), agreement("east", "0.25x20", instance="two")]
    seen += [agreement(silo, "0.9x20", instance="two") for silo in ("north", "south", "west")]
    assert fires(tmp_path, 10, seen, {("flu", "east"): "25%"}) == ""


def test_the_alert_ends_with_a_round_in_which_the_silo_agrees(tmp_path: Path) -> None:
    seen = [*GOOD, agreement("east", "0.4x8 0.9x12")]
    assert fires(tmp_path, 8, seen, {("flu", "east"): "40%"}) == ""
    assert fires(tmp_path, 10, seen, {}) == ""
