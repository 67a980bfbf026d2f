"""The ledger's report: every release with what it made of the total, in words, tables, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from ledger_scenes import NO_LIMIT, TASK, at_most, ballot, opened, tampered
from typer.testing import CliRunner

from silo_agent.shared.home import SiloHome
from silo_agent.trainer.cli.ledger import ledger as app
from silo_agent.trainer.privacy import budget as budget_module
from silo_agent.trainer.privacy.budget import Accounting, Budget
from silo_agent.trainer.privacy.ledger import running_totals as running_module
from silo_agent.trainer.privacy.ledger.release import Kind
from silo_agent.trainer.privacy.ledger.report import ESTIMATE, Report, examine
from silo_agent.trainer.privacy.settings import PrivacySettings
from wire.errors import LEDGER_ROLLED_BACK, ConfigurationError, Refusal
from wire.privacy.accounting import epsilon
from wire.privacy.declaration import Unit
from wire.privacy.events import Gaussian, Pure, Unprotected
from wire.privacy.privacy_filter import epsilon as adaptive_epsilon
from wire.runtime.terminal import console

pytestmark = pytest.mark.slow

OTHER = "bb" * 32
NOISE = Gaussian(sensitivity=1.0, scale=20.0)
BUDGETS = PrivacySettings.model_validate(
    {"mechanism": "teacher_votes", "epsilon": 1, "lifetime_epsilon": 3}
)
EMPIRICAL: dict[str, Any] = {
    "mechanism": "xor",
    "sensitivity": "empirical",
    "estimate": True,
    "parameters": {"s": 12, "flip": 0.1234567, "worst_case_epsilon": 740.0},
}


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "width", 250)


def about(value: float) -> Any:
    """Composed at δ = 1e-5 a little less than the sum."""
    return pytest.approx(value, rel=1e-4)


def reported(home: Path, last: int | None = None) -> Report:
    return examine(opened(home).entries(), BUDGETS, last)


def run(home: Path, *arguments: str) -> Any:
    (home / "silo.yaml").write_text(
        "data: {path: d.csv, label: y}\nmodel: svm\n"
        "privacy: {mechanism: teacher_votes, epsilon: 1, lifetime_epsilon: 3}\n"
    )
    return CliRunner().invoke(app, [*arguments, "--home", str(home)])


# -- numbers ----------------------------------------------------------------------------------------


def test_each_entry_shows_what_its_task_and_its_data_set_had_spent_by_then(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    tasks = [TASK, TASK, OTHER, TASK]
    for number, task in enumerate(tasks, start=1):
        ledger.spend(ballot(number, task_digest=task, events=(NOISE,)), NO_LIMIT)
        ledger.spend(
            ballot(number + 10, kind=Kind.ABSTENTION, task_digest=task, events=()), NO_LIMIT
        )
    lines = reported(tmp_path).rows
    of_task = [1, 1, 2, 2, 1, 1, 3, 3]
    for place, line in enumerate(lines):
        assert line.task is not None
        assert line.task.epsilon == pytest.approx(epsilon([NOISE] * of_task[place], 1e-5))
        count = epsilon if place < 4 else adaptive_epsilon
        assert line.dataset.epsilon == pytest.approx(count([NOISE] * (place // 2 + 1), 1e-5))
        assert not line.dataset.at_most


def test_totals_are_held_against_the_budgets_of_silo_yaml(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    for number, task in ((1, TASK), (2, TASK), (1, OTHER)):
        ledger.spend(ballot(number, task_digest=task), NO_LIMIT)
    ledger.spend(ballot(1, dataset="archive"), NO_LIMIT)
    report = reported(tmp_path)
    private, archive = report.datasets
    assert (private.spent, private.budget, private.left) == (about(0.75), 3, about(2.25))
    assert (archive.spent, archive.budget, archive.left) == (about(0.25), None, None)
    assert [(total.spent, total.budget, total.left) for total in report.tasks] == [
        (about(0.5), 1, about(0.5)),
        (about(0.25), 1, about(0.75)),
        (about(0.25), None, None),
    ]
    assert private.guarantee == "proved"


def test_from_the_first_estimate_on_every_total_is_one(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.spend(ballot(1), NO_LIMIT)
    ledger.spend(ballot(2, **EMPIRICAL), NO_LIMIT)
    ledger.spend(ballot(1, task_digest=OTHER), NO_LIMIT)
    report = reported(tmp_path)
    assert [line.dataset.estimate for line in report.rows] == [False, True, True]
    assert [line.task and line.task.estimate for line in report.rows] == [False, True, False]
    assert [line.release.worst_case_epsilon for line in report.rows] == [None, 740, None]
    assert report.rows[1].parameters == "flip 0.1235, s 12"
    assert report.datasets[0].guarantee == ESTIMATE
    assert [total.guarantee for total in report.tasks] == [ESTIMATE, "proved"]
    (sentence,) = report.sentences()
    assert f"1 entry of 3 rest on an assumption, so this ε is an {ESTIMATE}" in sentence


def test_a_long_ledger_is_summed_up_with_bounded_work_and_never_too_low(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = opened(tmp_path)
    for number in range(1, 41):
        ledger.spend(ballot(number), NO_LIMIT)
    evaluated: list[float] = []

    def counted(spending: Any, _delta: float) -> float:
        evaluated.append(0)
        return math.fsum(event.epsilon * times for event, times in spending.items())

    monkeypatch.setattr(budget_module, "cost", counted)
    monkeypatch.setattr(budget_module, "filter_cost", counted)
    monkeypatch.setattr(running_module, "_MOST", 10)
    lines = reported(tmp_path).rows
    assert len(evaluated) <= 2 * 10 + 2
    for place, line in enumerate(lines, start=1):
        exact = 0.25 * place
        assert line.dataset.epsilon >= exact
        assert line.dataset.at_most == (line.dataset.epsilon > exact)
    assert lines[-1].dataset.epsilon == 10
    assert not lines[-1].dataset.at_most
    evaluated.clear()
    assert len(reported(tmp_path, last=3).rows) == 3
    assert len(evaluated) == 2 * 3 + 2


def test_a_total_holds_for_a_row_once_a_release_protected_rows_only(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.spend(ballot(1), NO_LIMIT)
    assert reported(tmp_path).datasets[0].unit is Unit.PATIENT
    per_row = Budget(None, None, 1e-5, Unit.ROW)
    ledger.spend(ballot(2, unit="row"), per_row)
    report = reported(tmp_path)
    assert report.datasets[0].unit is Unit.ROW
    (sentence,) = report.sentences()
    assert "of any one row" in sentence
    assert "1 of 2 paid entries protect single rows only" in sentence


def test_the_report_says_which_of_the_two_numbers_it_shows_and_why(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    plan = (NOISE, NOISE)
    ledger.spend(ballot(1, events=(NOISE,), plan=plan), NO_LIMIT)
    ledger.spend(ballot(2, events=(NOISE,), plan=plan), NO_LIMIT)
    (total,) = reported(tmp_path).datasets
    assert total.accounting is Accounting.FIXED
    assert "all of it was planned before the first release" in reported(tmp_path).sentences()[0]
    ledger.spend(ballot(3, events=(NOISE,), plan=plan, task_digest=OTHER), NO_LIMIT)
    report = reported(tmp_path)
    assert report.datasets[0].accounting is Accounting.ADAPTIVE
    assert report.datasets[0].as_json()["accounting"] == "privacy filter"
    assert [task.accounting for task in report.tasks] == [Accounting.FIXED] * 2
    assert "chosen in sight of earlier ones, so a privacy filter counts" in report.sentences()[0]
    shown = run(tmp_path)
    assert "privacy filter" in shown.output


def test_abstaining_says_nothing_about_anyone(tmp_path: Path) -> None:
    opened(tmp_path).spend(ballot(1, kind=Kind.ABSTENTION, events=()), NO_LIMIT)
    assert reported(tmp_path).sentences() == [
        "1 ballot left this hospital, made from data set private; nothing in them depends on any patient."
    ]


# -- on the command line --------------------------------------------------------------------------------


def test_an_officer_reads_what_was_released_spent_and_left(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.spend(ballot(1), at_most(task=1, lifetime=3))
    ledger.spend(ballot(2, **EMPIRICAL), at_most(task=1, lifetime=3))
    why = "the task's budget is spent"
    ledger.spend(ballot(3, kind=Kind.ABSTENTION, events=(), reason=why), NO_LIMIT)
    told = run(tmp_path)
    assert told.exit_code == 0
    words = " ".join(told.stdout.split())
    assert "learns of any one patient at most what ε = 0.5 at δ = 1e-05 allows" in words
    assert "of the lifetime budget ε = 3, 2.5 is left" in words
    assert f"abstention, {why}" in words
    assert "worst case ε = 740" in words
    assert "≈ 0.5" in words
    assert f"≈ {ESTIMATE}" in words
    assert ballot(1).ballot_digest[:12] in words


def test_a_release_without_noise_is_called_what_it_is(tmp_path: Path) -> None:
    opened(tmp_path).spend(ballot(1, events=(Unprotected(),), mechanism="none"), NO_LIMIT)
    words = " ".join(run(tmp_path).stdout.split())
    assert (
        "1 entry had no noise, so nothing bounds what may be learned of a patient (ε = ∞)" in words
    )
    assert "none: released without noise" in words
    told = json.loads(run(tmp_path, "--json").stdout)
    assert told["datasets"][0]["epsilon_spent"] == "inf"
    assert told["entries"][0]["dataset_epsilon"] == "inf"


def test_an_empty_ledger_says_so(tmp_path: Path) -> None:
    assert "no ballot has left this hospital" in run(tmp_path).stdout
    assert json.loads(run(tmp_path, "--json").stdout)["entries"] == []
    assert run(tmp_path, "--csv", "-").exit_code == 0


def test_json_and_csv_have_every_entry_whatever_the_table_shows(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    for number in range(1, 31):
        ledger.spend(ballot(number, events=(Pure(epsilon=0.01),)), NO_LIMIT)
    assert "10 older ones" in run(tmp_path).stdout
    told = json.loads(run(tmp_path, "--json").stdout)
    assert [entry["round"] for entry in told["entries"]] == list(range(1, 31))
    assert told["entries"][4]["events"] == [{"kind": "pure", "epsilon": 0.01, "count": 1}]
    assert told["delta"] == 1e-5
    rows = list(csv.DictReader(io.StringIO(run(tmp_path, "--csv", "-").stdout)))
    assert [row["ballot_digest"] for row in rows] == [
        entry["ballot_digest"] for entry in told["entries"]
    ]
    assert json.loads(rows[4]["events"]) == told["entries"][4]["events"]
    out = tmp_path / "ledger.csv"
    assert "30 entries written" in run(tmp_path, "--csv", str(out)).stdout
    assert list(csv.DictReader(out.open(encoding="utf-8"))) == rows


def test_verify_fails_where_the_ledger_does_not_fit_its_witness(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    for number in (1, 2):
        ledger.spend(ballot(number), NO_LIMIT)
    told = run(tmp_path, "verify")
    assert told.exit_code == 0
    assert f"2 entries, head {ledger.verify().hash}" in told.stdout
    tampered(tmp_path, "DELETE FROM entries WHERE sequence = 2")
    told = run(tmp_path, "verify")
    assert isinstance(told.exception, Refusal)
    assert told.exception.is_a(LEDGER_ROLLED_BACK)
    told = run(tmp_path, "verify", "--json")
    assert told.exit_code == 1
    assert json.loads(told.stdout)["code"] == "LEDGER_ROLLED_BACK"
    # Nor are there numbers where they might be too small.
    assert isinstance(run(tmp_path).exception, Refusal)


def test_a_person_writes_off_what_the_witness_says_is_lacking(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    for number in (1, 2, 3):
        ledger.spend(ballot(number), NO_LIMIT)
    tampered(tmp_path, "DELETE FROM entries WHERE sequence > 1")
    act = ("write-off", "--epsilon", "0.5", "--note", "restored from backup")
    home = ["--home", str(tmp_path)]
    assert run(tmp_path, *act).exit_code == 1
    told = CliRunner().invoke(app, [*act, *home], input="n\n")
    assert "ε = 0.5 for 2 ballots" in " ".join(told.stdout.split())
    assert told.exit_code == 1
    assert isinstance(run(tmp_path, "verify").exception, Refusal)
    assert CliRunner().invoke(app, [*act, *home], input="y\n").exit_code == 0
    assert run(tmp_path, "verify").exit_code == 0
    last = json.loads(run(tmp_path, "--json").stdout)["entries"][-1]
    assert (last["kind"], last["ballots"], last["estimate"]) == ("write_off", 2, ESTIMATE)
    assert last["reason"] == "restored from backup"
    assert last["task_epsilon"] is None
    assert last["dataset_epsilon"] == about(0.75)
    assert opened(tmp_path).ballots() == 3


@pytest.mark.parametrize(("value", "note"), [("-1", "x"), ("nan", "x"), ("1", " ")])
def test_a_write_off_that_says_nothing_is_refused(tmp_path: Path, value: str, note: str) -> None:
    told = run(tmp_path, "write-off", "--epsilon", value, "--note", note, "--yes")
    assert isinstance(told.exception, ConfigurationError)
    assert not SiloHome(tmp_path).ledger.exists()


def test_an_option_before_a_subcommand_is_refused_and_not_dropped(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["--home", str(tmp_path), "verify"])
    assert isinstance(told.exception, ConfigurationError)
    assert "--home stands before `verify`" in told.exception.sentence
