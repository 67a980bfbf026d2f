"""What a hospital's commands show of a coordinator's words: all of it, and none of it obeyed."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from silo_agent.agent.audit.entries import AuditEntry, Direction, Kind
from silo_agent.agent.cli import _traffic_row
from silo_agent.agent.doctor.membership import protocol_finding, role_finding
from silo_agent.trainer.approval.consent import ApprovalState, Decision
from silo_agent.trainer.approval.policy import ApprovalCriteria, Policy
from silo_agent.trainer.approval.view import SeenTask, print_definition
from tests.unit.test_hostile_views import HOSTILE, LITERAL, NOBODY, hostile, steering
from wire.consilium.v1 import identity_pb2
from wire.identity.files import IdentityFiles
from wire.runtime.csv_text import csv_cell
from wire.runtime.findings import Finding, Status, print_finding
from wire.runtime.logs import configure_logs
from wire.runtime.terminal import Format, console, export_text, print_table
from wire.task.definition import TaskDefinition

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cell of a table is broken."""
    monkeypatch.setattr(console, "_width", 2000)
    monkeypatch.setattr(console, "_height", 100)


def shown(capsys: Captured) -> str:
    """What was printed; nothing in it steers a terminal, and markup stands there as written."""
    captured = capsys.readouterr()
    text = captured.out + captured.err
    assert not steering(text)
    assert LITERAL in text
    return text


def test_a_definitions_labels_are_shown_whole_and_literally(capsys: Captured) -> None:
    labels = [f"{number}{HOSTILE}" for number in range(40)]
    task = TaskDefinition.model_validate(
        {
            "name": "screening",
            "public_set": "ab" * 32,
            "rows": 9,
            "labels": labels,
            "rounds": {"max_rounds": 2, "quorum": 2},
        }
    )
    seen = SeenTask(
        task, ApprovalCriteria(Policy(), "5e" * 32), Decision(ApprovalState.WAITING), ()
    )
    print_definition(seen, console)
    assert shown(capsys).count(LITERAL) == len(labels)
    print_table("Tasks", [seen.row()], empty="")
    shown(capsys)


def test_the_doctors_findings(capsys: Captured) -> None:
    answer = hostile(identity_pb2.WhoAmIResponse())
    files = IdentityFiles.__new__(IdentityFiles)
    object.__setattr__(files, "name", "north")
    for finding in (role_finding(answer, files), protocol_finding(answer)):
        print_finding(finding, console)
    assert f"unknown ({NOBODY})" in shown(capsys)
    print_finding(Finding(HOSTILE, Status.FAILED, HOSTILE, HOSTILE), console)
    shown(capsys)


def test_the_record_of_what_came(capsys: Captured) -> None:
    entry = AuditEntry("2026-03-01T12:00:00+00:00", Direction.IN, Kind("consensus"), "", 1, 2, "")
    row = _traffic_row(replace(entry, task=HOSTILE, digest=HOSTILE))
    print_table("Traffic", [row], empty="", caption=HOSTILE)
    shown(capsys)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_log_line_is_one_line_and_bounded(
    as_json: bool, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    before, handlers = structlog.get_config(), logging.getLogger().handlers[:]
    try:
        configure_logs(json=as_json)
        structlog.get_logger().warning("said", sentence=HOSTILE, names=[HOSTILE], long="x" * 10**6)
    finally:
        structlog.configure(**before)
        logging.getLogger().handlers[:] = handlers
    line = capsys.readouterr().err
    plain = line.replace("\x1b[0m", "").replace("\x1b[1m", "").replace("\x1b[2m", "")
    assert line.count("\n") == 1
    assert "\x1b]8" not in plain
    assert "\x9b" not in plain
    assert len(line) < 5000


@pytest.mark.parametrize(
    "text",
    [
        "=HYPERLINK(1)",
        "+1+cmd|' /C calc'!A0",
        "-2+3",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        " =1",
        "\n=1",
        "|x",
        "%0A=1",
    ],
)
def test_a_cell_that_looks_like_a_formula_is_marked_as_text(text: str) -> None:
    cell = str(csv_cell(text))
    assert cell.startswith("'")
    assert cell.isprintable()
    rows = [{"sequence": 3, text: text}]
    lines = export_text(rows, Format.CSV).splitlines()
    assert len(lines) == 2
    assert "3," in lines[1]


@pytest.mark.parametrize(
    "value", [-3, -0.5, 1e-9, "-3", "+4.5", "-1e-5", "north", "2026-01-01", None]
)
def test_numbers_and_names_stay_what_they_are(value: object) -> None:
    assert csv_cell(value) == value


def test_every_csv_writer_of_ours_marks_formulas() -> None:
    writers = {
        str(path)
        for package in ("coordinator", "silo_agent", "wire")
        for path in Path(package).rglob("*.py")
        if "csv.writer(" in path.read_text() or "DictWriter" in path.read_text()
    }
    assert writers == {"wire/runtime/csv_text.py", "silo_agent/trainer/cli/student.py"}
    assert all("csv_cell(" in Path(path).read_text() for path in writers)
