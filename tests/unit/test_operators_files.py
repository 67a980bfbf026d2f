"""Alerts, runbooks and dashboards fit each other and what the pages show; `make test-system` runs them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from wire.runtime.cli import application

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
PROMETHEUS = REPOSITORY / "docker" / "prometheus"
GRAFANA = REPOSITORY / "docker" / "grafana"
RUNBOOKS = REPOSITORY / "docs" / "runbooks"
PAGES = sorted((GRAFANA / "dashboards").glob("*/*.json"))
RUNBOOK_PAGES = sorted(set(RUNBOOKS.glob("*.md")) - {RUNBOOKS / "README.md"})
METRIC = re.compile(r"\bconsilium_\w+")
READS = {"consortium": "Coordinator", "hospital": "Agent"}
"""Whose metrics the alerts and dashboards in a folder read."""


def documented(section: str) -> set[str]:
    text = (REPOSITORY / "docs" / "metrics.md").read_text()
    part = text.partition(f"## {section}")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `(consilium_\w+)`", part, re.MULTILINE))


def read(expression: str) -> set[str]:
    """The metrics in an expression; a histogram's series belong to the histogram."""
    plain = re.sub(r"\b\w+:(\w+):\w+\b", r"\1", expression)
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in METRIC.findall(plain)}


def rules(side: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / side / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts(*sides: str) -> dict[str, dict[str, Any]]:
    """By name; of both sides if none is named."""
    found = [rule for side in sides or READS for rule in rules(side) if "alert" in rule]
    assert len({rule["alert"] for rule in found}) == len(found)
    return {rule["alert"]: rule for rule in found}


def panels(page: Path) -> list[dict[str, Any]]:
    shown = json.loads(page.read_text())["panels"]
    return [panel for panel in shown if panel["type"] != "row"]


class TestAlerts:
    def test_each_has_a_severity_and_says_what_and_where_to_read_on(self) -> None:
        assert len(alerts()) >= 8
        for name, alert in alerts().items():
            assert name.startswith("Consilium")
            assert alert["labels"]["severity"] in ("warning", "critical"), name
            assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}, name
            assert "for" in alert, name

    @pytest.mark.parametrize("side", READS)
    def test_they_read_one_sides_page_and_only_what_is_documented(self, side: str) -> None:
        known = documented(READS[side])
        for rule in rules(side):
            used = read(rule["expr"])
            assert used, rule
            assert used <= known, rule

    @pytest.mark.parametrize("side", READS)
    def test_each_is_played_firing_and_keeping_quiet(self, side: str) -> None:
        scenes = yaml.safe_load((PROMETHEUS / side / "alerts_test.yaml").read_text())["tests"]
        asked = [test for scene in scenes for test in scene["alert_rule_test"]]
        firing = {test["alertname"] for test in asked if test.get("exp_alerts")}
        quiet = {test["alertname"] for test in asked if not test.get("exp_alerts")}
        assert firing == set(alerts(side))
        assert quiet == set(alerts(side))

    def test_every_alert_has_a_runbook_and_every_runbook_an_alert(self) -> None:
        pages = {name: alert["annotations"]["runbook_url"] for name, alert in alerts().items()}
        assert {REPOSITORY / page for page in pages.values()} == set(RUNBOOK_PAGES)
        listed = re.findall(
            r"^\| \[(\w+)\]\(([\w.-]+)\) \| (\w+) \|",
            (RUNBOOKS / "README.md").read_text(),
            re.MULTILINE,
        )
        assert sorted(listed) == sorted(
            (name, Path(page).name, alerts()[name]["labels"]["severity"])
            for name, page in pages.items()
        )
        for name, page in pages.items():
            text = (REPOSITORY / page).read_text()
            assert text.startswith(f"# {name}\n"), page
            parts = re.findall(r"^## (.*)$", text, re.MULTILINE)
            assert parts == ["Meaning", "Impact", "Diagnosis", "Mitigation"], page
            assert all(part.strip() for part in re.split(r"^## .*$", text, flags=re.M)), page


@cache
def commands() -> Any:
    return typer.main.get_command(application([]))


def command(words: list[str]) -> Any:
    """The command that these words begin with; what follows are its arguments."""
    found = commands()
    for word in words:
        if not hasattr(found, "commands"):
            break
        found = found.commands[word]
    return found


@pytest.mark.parametrize("page", RUNBOOK_PAGES, ids=lambda page: page.stem)
class TestRunbooks:
    def test_commands_exist_and_are_given_what_they_require(self, page: Path) -> None:
        for written in re.findall(r"`consilium ([a-z][^`]*)`", page.read_text()):
            words = written.split()
            asked = command(words)
            assert getattr(asked, "invoke_without_command", True), written
            options = {flag for parameter in asked.params for flag in parameter.opts}
            given = {word for word in words if word.startswith("--")}
            assert given <= options, written
            for parameter in asked.params:
                if parameter.required and parameter.param_type_name == "option":
                    assert given & set(parameter.opts), written

    def test_links_lead_somewhere_and_metrics_are_documented(self, page: Path) -> None:
        text = page.read_text()
        for link in re.findall(r"\]\(([^)#]+)", text):
            assert (page.parent / link).exists(), link
        assert read(text) <= documented("Coordinator") | documented("Agent")


class TestDashboards:
    def test_they_are_as_the_script_writes_them(self) -> None:
        script = [sys.executable, "-B", str(GRAFANA / "build.py"), "--check"]
        told = subprocess.run(script, capture_output=True, text=True, check=False)
        assert told.returncode == 0, told.stdout + told.stderr

    def test_there_is_one_for_each_question(self) -> None:
        assert {(page.parent.name, page.stem) for page in PAGES} == {
            *(("consortium", name) for name in ("consortium", "silo", "coordinator")),
            *(("hospital", name) for name in ("hospital", "privacy")),
        }
        loaded = [json.loads(page.read_text()) for page in PAGES]
        assert len({page["uid"] for page in loaded}) == len({page["title"] for page in loaded}) == 5

    @pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
    def test_every_panel_says_what_it_shows_in_which_unit_and_when_it_is_bad(
        self, page: Path
    ) -> None:
        assert panels(page)
        for panel in panels(page):
            title, shown = panel["title"], panel["fieldConfig"]["defaults"]
            assert len(panel["description"]) > 15, title
            assert shown["unit"], title
            steps = shown["thresholds"]["steps"]
            values = [step["value"] for step in steps]
            assert values[0] is None, title
            assert values[1:] == sorted(values[1:]), title
            assert len({step["color"] for step in steps}) == len(steps), title
            sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
            assert all(source["uid"] == "${datasource}" for source in sources), title

    @pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
    def test_it_reads_one_sides_page_and_only_what_is_documented(self, page: Path) -> None:
        loaded = json.loads(page.read_text())
        known = documented(READS[page.parent.name])
        asked = [target["expr"] for panel in panels(page) for target in panel["targets"]]
        variables = {variable["name"]: variable for variable in loaded["templating"]["list"]}
        assert variables.pop("datasource")["type"] == "datasource"
        for expression in [*asked, *(variable["definition"] for variable in variables.values())]:
            assert read(expression) <= known, expression
            used = set(re.findall(r"\$\{?(\w+)", expression))
            assert used <= {*variables, "__rate_interval", "__range"}, expression

    @pytest.mark.parametrize(
        "page", [p for p in PAGES if p.parent.name == "consortium"], ids=lambda page: page.stem
    )
    def test_nothing_looks_well_where_nobody_answers(self, page: Path) -> None:
        for panel in panels(page):
            if any("vector(0)" in target["expr"] for target in panel["targets"]):
                steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
                at_nothing = [step["color"] for step in steps if (step["value"] or 0) <= 0][-1]
                assert at_nothing == "red", panel["title"]

    @pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
    def test_no_two_panels_lie_on_each_other(self, page: Path) -> None:
        taken: set[tuple[int, int]] = set()
        shown = json.loads(page.read_text())["panels"]
        assert len({panel["id"] for panel in shown}) == len(shown)
        for panel in shown:
            grid = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(grid["x"], grid["x"] + grid["w"])
                for y in range(grid["y"], grid["y"] + grid["h"])
            }
            assert not cells & taken, panel["title"]
            assert max(x for x, _ in cells) < 24, panel["title"]
            taken |= cells

    def test_every_metric_is_on_a_dashboard(self) -> None:
        asked = {
            name
            for page in PAGES
            for panel in panels(page)
            for target in panel["targets"]
            for name in read(target["expr"])
        }
        everything = documented("Coordinator") | documented("Agent")
        assert everything - asked == set()

    def test_a_hospitals_pages_choose_a_silo_and_never_an_address(self) -> None:
        """An agent that is started again may have another; of those of six hours Grafana would choose a dead one."""
        pages = [page for page in PAGES if page.parent.name == "hospital"]
        assert len(pages) == 2
        for page in pages:
            variables = json.loads(page.read_text())["templating"]["list"]
            assert [variable["name"] for variable in variables] == ["datasource", "silo"]
            asked = [target["expr"] for panel in panels(page) for target in panel["targets"]]
            assert all('consilium_agent_info{silo="$silo"}' in expression for expression in asked)
