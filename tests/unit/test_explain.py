"""The page an officer signs: right for every combination of settings, and never a promise that is not kept."""

from __future__ import annotations

import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from silo_agent.shared.home import SiloHome
from silo_agent.trainer.cli.privacy import privacy
from silo_agent.trainer.explain.costs import TaskFacts, costs_of, encoding_for
from silo_agent.trainer.explain.explain import Explanation, explain
from silo_agent.trainer.explain.view import page_text
from silo_agent.trainer.explain.words import at_most, detected
from silo_agent.trainer.privacy.settings import PrivacySettings
from silo_agent.trainer.task_folder import TaskFolder
from wire.ballot import BallotShape, Encoding
from wire.errors import ConfigurationError
from wire.privacy.accounting import epsilon
from wire.privacy.events import RandomizedResponse
from wire.task.definition import TaskDefinition

pytestmark = pytest.mark.slow

ESTIMATES: tuple[dict[str, Any], ...] = (
    {"name": "xor", "sensitivity": "empirical"},
    {"name": "xor", "sensitivity": {"source": "stability_bound", "stability": 0.01}},
)
PROVED: tuple[dict[str, Any], ...] = (
    {"name": "xor"},
    {"name": "xor", "sensitivity": "worst_case", "paid_rounds": 1},
    {"name": "randomized_response"},
    {"name": "teacher_votes"},
    {"name": "teacher_votes", "noise": "laplace"},
    {"name": "teacher_votes", "noise": "confident"},
    {"name": "private_labeller"},
    {"name": "private_labeller", "head": "ebm"},
    {"name": "private_labeller", "head": "sgd"},
)
NOISE: dict[str, dict[str, Any]] = {
    "xor": {"flip": 0.4},
    "randomized_response": {"row_epsilon": 0.1},
    "teacher_votes": {"scale": 40.0},
}
BUDGETS: tuple[dict[str, Any], ...] = (
    {"epsilon": 2.0},
    {"epsilon": 2.0, "lifetime_epsilon": 6.0},
)
COLUMNS = (None, "pid")


def settings_of(mechanism: Any, **more: Any) -> PrivacySettings:
    return PrivacySettings.model_validate({"mechanism": mechanism, **more})


def task(
    settings: PrivacySettings, rows: int = 100, classes: int = 3, rounds: int = 4
) -> TaskFacts:
    return TaskFacts(BallotShape(rows, classes, encoding_for(settings.mechanism)), rounds, "t1")


def text_of(page: Explanation) -> str:
    """All of it on one line: sentences are not broken."""
    return " ".join(page_text(page, Path("silo.yaml")).split())


def about_task(settings: PrivacySettings, column: str | None = "pid", **facts: int) -> Explanation:
    known = task(settings, **facts)
    return explain(settings, column, known, costs_of(settings, column, known))


# -- guarantees ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", PROVED, ids=str)
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_a_proved_mechanism_with_a_budget_is_a_guarantee(
    mechanism: dict[str, Any], column: str | None, budget: dict[str, Any]
) -> None:
    page = explain(settings_of(mechanism, **budget), column)
    text = text_of(page)
    assert page.kind == "guarantee"
    assert "This is a guarantee" in text
    assert "one task costs at most ε = 2 at δ = 1e-05" in text
    assert "e^ε ≈ 7.4, except with probability at most δ = 1e-05" in text
    assert "abstains on every row, which costs nothing, stays in the federation" in text
    assert "Signature" in text
    assert "estimated" not in text
    if column is None:
        assert "for every single row" in text
        assert "name the column that tells them apart as data.patient_id" in text
    else:
        assert "for every single patient (the column pid says whose row it is)" in text
        assert "one patient, with all rows, is replaced by any other" in text
    if "lifetime_epsilon" in budget:
        assert "All tasks ever voted in with this data set together cost at most ε = 6" in text
        assert "There is no limit over several tasks" not in text
    else:
        assert "There is no limit over several tasks" in text
        assert "k such tasks: at most ε = k × 2 at δ = k × 1e-05" in text


@pytest.mark.parametrize("mechanism", [one for one in PROVED if "head" not in one], ids=str)
def test_what_a_task_costs_is_never_above_its_budget(mechanism: dict[str, Any]) -> None:
    settings = settings_of(mechanism, epsilon=8.0)
    costs = costs_of(settings, "pid", task(settings))
    assert costs.epsilon is not None
    assert 0.8 * 8 < costs.epsilon <= 8 * (1 + 1e-9)
    assert costs.payable == costs.paid_rounds
    page = about_task(settings)
    assert page.task_epsilon == 8
    assert "task t1 (100 public rows, 3 classes, at most 4 rounds) costs at most ε = 8" in text_of(
        page
    )


def test_noise_that_costs_less_than_the_budget_is_promised_at_what_it_costs() -> None:
    page = about_task(settings_of({"name": "xor", "flip": 0.49}, epsilon=100))
    assert page.task_epsilon is not None
    assert page.task_epsilon < 20


def test_noise_without_a_budget_costs_what_the_accountant_says_of_all_rounds() -> None:
    page = about_task(settings_of({"name": "xor", "flip": 0.4}))
    bits = RandomizedResponse(buckets=2, epsilon=math.log(0.6 / 0.4), count=2 * 100 * 4)
    assert page.task_epsilon == pytest.approx(epsilon([bits], 1e-5), rel=1e-3)
    assert page.kind == "guarantee"
    assert "That is a weak promise" in text_of(page)
    assert "silo.yaml sets no budget: the silo votes in every round" in text_of(page)


def test_what_is_shown_is_never_below_what_is_meant() -> None:
    page = about_task(settings_of({"name": "xor", "flip": 0.4}))
    printed = re.search(r"costs at most ε = ([0-9.]+) at", text_of(page))
    assert printed is not None
    assert page.task_epsilon is not None
    assert page.task_epsilon <= float(printed[1]) < page.task_epsilon + 1e-3
    assert at_most(0.13592) == "13.6%"
    assert at_most(0.1361) == "13.7%"
    assert at_most(0.05) == "5.0%"


def test_a_kept_head_is_paid_for_once() -> None:
    text = text_of(about_task(settings_of("private_labeller", epsilon=1)))
    assert "One ballot is paid for; later rounds repeat the last one, for nothing." in text


def test_a_budget_smaller_than_the_noise_needs_says_how_many_ballots_it_pays_for() -> None:
    mechanism = {"name": "randomized_response", "row_epsilon": 0.02}
    answers = RandomizedResponse(buckets=3, epsilon=0.02, count=100)
    for_two = 1.05 * epsilon([answers] * 2, 1e-5)
    assert for_two < epsilon([answers] * 3, 1e-5)
    text = text_of(about_task(settings_of(mechanism, epsilon=for_two)))
    assert "the budget pays for 2 of 4 ballots; the silo abstains after that" in text
    text = text_of(about_task(settings_of(mechanism, epsilon=0.01)))
    assert "not one ballot fits that budget" in text


def test_a_lifetime_budget_alone_is_kept_but_no_task_has_a_limit() -> None:
    for name, noise in NOISE.items():
        page = explain(settings_of({"name": name, **noise}, lifetime_epsilon=3), "pid")
        text = text_of(page)
        assert page.kind == "guarantee"
        assert page.task_epsilon is None
        assert "there is no limit for a single task" in text
        assert "All tasks ever voted in with this data set together cost at most ε = 3" in text
        assert "Whatever they conclude from all ballots ever made from the data set" in text


# -- what is none ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", COLUMNS)
def test_without_a_mechanism_the_page_says_there_is_no_guarantee(column: str | None) -> None:
    page = explain(settings_of("none"), column)
    text = text_of(page)
    assert page.kind == "none"
    assert "There is no guarantee" in text
    assert "ε = ∞" in text
    assert unqualified(text) == []
    assert "e^ε" not in text


@pytest.mark.parametrize(
    "name", ["xor", "randomized_response", "teacher_votes", "private_labeller"]
)
@pytest.mark.parametrize("budget", [{}, {"lifetime_epsilon": 3.0}], ids=str)
def test_where_the_noise_is_left_open_nothing_is_promised(
    name: str, budget: dict[str, Any]
) -> None:
    page = explain(settings_of(name, **budget), "pid")
    text = text_of(page)
    assert page.kind == "none"
    assert "No ballot can be made with it, so nothing is promised. Set privacy.epsilon." in text
    assert "guarantee" not in text
    assert "e^ε" not in text


def test_noise_without_any_budget_promises_nothing_before_the_task_is_known() -> None:
    for name, noise in NOISE.items():
        page = explain(settings_of({"name": name, **noise}), "pid")
        assert page.kind == "none", name
        assert "depends on its rows and rounds" in text_of(page)
        assert unqualified(text_of(page)) == []


# -- estimates ------------------------------------------------------------------------------------------


def unqualified(text: str) -> list[str]:
    """Where the word stands without a no or a not before it."""
    found = re.finditer(r"(\S+ \S+ )?guarantee", text, flags=re.IGNORECASE)
    return [match[0] for match in found if not re.search(r"\b(no|not)\b", match[0])]


def test_the_check_for_unqualified_promises_can_fail() -> None:
    assert unqualified("This is a guarantee.") == ["is a guarantee"]
    assert unqualified("an estimate, not a guarantee; there is no guarantee") == []


@pytest.mark.parametrize("mechanism", ESTIMATES, ids=str)
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("flip", [{}, {"flip": 0.3}], ids=str)
@pytest.mark.parametrize("budget", [*BUDGETS, {"lifetime_epsilon": 5.0}], ids=str)
def test_an_estimate_is_called_one_and_never_a_guarantee(
    mechanism: dict[str, Any],
    column: str | None,
    flip: dict[str, Any],
    budget: dict[str, Any],
) -> None:
    settings = settings_of(mechanism | flip, **budget)
    for page in (explain(settings, column), about_task(settings, column)):
        text = text_of(page)
        assert page.estimate
        assert page.kind != "guarantee"
        assert unqualified(text) == []
        if page.kind != "none":
            assert "This is an estimate, not a guarantee." in text
            assert "were they proved" in text.lower()
            assert re.search(r"(is|are) estimated to cost", text)


def test_the_assumption_behind_an_estimate_is_named() -> None:
    empirical, stability = (
        text_of(explain(settings_of(one, epsilon=1), None)) for one in ESTIMATES
    )
    assert "as were seen when 100 records were left out" in empirical
    assert "stability of 0.01 at 95% confidence" in stability
    proved = text_of(explain(settings_of("xor", epsilon=1), None))
    assert "one exchange can change every label" in proved


# -- what leaves, and what is meant ---------------------------------------------------------------------


def test_each_mechanism_is_described_by_what_it_does() -> None:
    sentences = {
        "xor": "every bit is flipped with the same fixed probability",
        "randomized_response": "each label is sent as it is or replaced at random",
        "teacher_votes": "divided into 25 groups that share nobody",
        "private_labeller": "with a certainty from 0 to 15 by the same model",
    }
    pages = {name: text_of(explain(settings_of(name, epsilon=1), None)) for name in sentences}
    for name, other in itertools.product(sentences, sentences):
        assert (sentences[name] in pages[other]) == (name == other)


def test_a_general_theta_is_not_described_as_independent_flips() -> None:
    theta = [[-1.0, 0.1], [0.1, -1.0]]
    text = text_of(explain(settings_of({"name": "xor", "theta": theta}, epsilon=1), None))
    assert "drawn with the Θ that silo.yaml gives" in text
    assert "same fixed probability" not in text


def test_what_leaves_is_counted_for_a_known_task() -> None:
    settings = settings_of("xor", epsilon=1)
    text = text_of(about_task(settings, rows=800, classes=3, rounds=4))
    assert "800 rows × 3 bits, 300 B, in each of 4 rounds" in text


def test_a_task_the_mechanism_cannot_serve_is_named_as_such() -> None:
    settings = settings_of("xor", epsilon=1)
    index = TaskFacts(BallotShape(100, 3, Encoding.INDEX), 4, "t1")
    text = text_of(explain(settings, None, index, costs_of(settings, None, index)))
    assert "The silo cannot take part in task t1" in text
    assert "one_hot" in text
    assert "one task costs at most ε = 1" in text


def test_detections_lie_on_the_edge_of_what_epsilon_and_delta_allow() -> None:
    assert detected(0.0, 0.0) == pytest.approx(0.05)
    assert detected(1.0, 1e-5) == pytest.approx(math.e * 0.05 + 1e-5)
    # Of binary randomised response at ε = 8: crying “X” on “yes” alone is wrong more seldom than in 5 %.
    assert 0.999 < detected(8.0, 0.0) < 1
    assert detected(8.0, 0.0) == pytest.approx(1 - math.exp(-8) * 0.95)


def test_the_fingerprint_changes_with_anything_that_was_signed() -> None:
    pages = [
        explain(settings_of("xor", epsilon=1), None),
        explain(settings_of("xor", epsilon=1), "pid"),
        explain(settings_of("xor", epsilon=1.5), None),
        explain(settings_of("randomized_response", epsilon=1), None),
    ]
    assert len({page.fingerprint for page in pages}) == len(pages)
    assert explain(settings_of("xor", epsilon=1), None).fingerprint == pages[0].fingerprint


# -- the command ------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "silo.yaml").write_text(
        "data: {path: rows.csv, label: y, patient_id: pid}\nmodel: decision_tree\n"
        "privacy: {mechanism: private_labeller, epsilon: 1, lifetime_epsilon: 4}\n"
    )
    return tmp_path


def test_the_command_reads_the_silos_own_settings(home: Path) -> None:
    found = CliRunner().invoke(privacy, ["explain", "--home", str(home), "--json"])
    page = json.loads(found.stdout)
    assert page["kind"] == "guarantee"
    assert (page["task_epsilon"], page["lifetime_epsilon"], page["unit"]) == (1, 4, "patient")
    shown = CliRunner().invoke(privacy, ["explain", "--home", str(home)])
    assert "SHA-256 of what is explained here: " + page["fingerprint"] in shown.stdout


def test_a_task_laid_before_the_silo_is_explained_by_name(home: Path) -> None:
    definition = TaskDefinition.model_validate(
        {
            "name": "triage",
            "public_set": "0" * 64,
            "rows": 700,
            "labels": ["a", "b"],
            "encoding": "scored",
            "rounds": {"max_rounds": 7},
        }
    )
    TaskFolder(SiloHome(home).tasks, definition.digest).keep_definition(definition)
    found = CliRunner().invoke(privacy, ["explain", "--home", str(home), "--task", "triage"])
    text = " ".join(found.stdout.split())
    assert "task triage (700 public rows, 2 classes, at most 7 rounds) costs at most ε = 1" in text


def test_half_a_task_is_refused(home: Path) -> None:
    found = CliRunner().invoke(privacy, ["explain", "--home", str(home), "--rows", "10"])
    assert isinstance(found.exception, ConfigurationError)
    assert "--classes" in found.exception.hint
    both = ["explain", "--home", str(home), "--task", "t", "--rows", "10"]
    assert isinstance(CliRunner().invoke(privacy, both).exception, ConfigurationError)
