"""What the demo shows while it runs."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest
from rich.console import Console

from experiments.demo.hospitals import HOSPITALS
from experiments.demo.live import LineView, LiveView, Step, federation_panel, view_for
from wire.consilium.v1 import admin_pb2, ballot_pb2, task_pb2

pytestmark = pytest.mark.slow

NAMES = [hospital.name for hospital in HOSPITALS]
ISOLATION = {NAMES[0]: "own namespace", NAMES[1]: "none"}


def update(
    status: task_pb2.TaskStatus.ValueType = task_pb2.TASK_STATUS_RUNNING,
    voted: int = 3,
    connected: int = 5,
) -> admin_pb2.WatchTaskResponse:
    closes = task_pb2.OpenRound().closes_at
    closes.FromDatetime(datetime(2025, 3, 1, 12, 30, 5, tzinfo=UTC))
    running = status == task_pb2.TASK_STATUS_RUNNING
    return admin_pb2.WatchTaskResponse(
        task=task_pb2.TaskState(
            definition=task_pb2.TaskDefinition(rows=200, rounds=task_pb2.RoundPolicy(max_rounds=5)),
            status=status,
            open_round=task_pb2.OpenRound(
                number=2, expected=NAMES, voted=NAMES[:voted], closes_at=closes
            )
            if running
            else None,
            consensus=ballot_pb2.ConsensusHeader(round=1, changed_rows=3),
        ),
        silos=[
            admin_pb2.Silo(name=name, connected=place < connected)
            for place, name in enumerate(NAMES)
        ],
    )


def shown(width: int = 100, terminal: bool = False) -> Console:
    return Console(
        file=io.StringIO(), width=width, force_terminal=terminal, record=True, highlight=False
    )


def test_the_panel_says_who_is_there_what_it_does_and_when_the_round_closes() -> None:
    console = shown()
    console.print(federation_panel(update(connected=4), ISOLATION))
    text = console.export_text()
    assert "round 2 of at most 5 · waiting 3/5, closes " in text
    assert "churn 1.5%" in text
    rows = {line.split()[1].lower(): line for line in text.splitlines() if len(line.split()) > 3}
    assert "yes" in rows[NAMES[0]]
    assert "ballot is in" in rows[NAMES[0]]
    assert "own namespace" in rows[NAMES[0]]
    assert "no namespace allowed" in rows[NAMES[1]]
    assert "training" in rows[NAMES[3]]
    assert "training" not in rows[NAMES[4]]
    assert " no " in rows[NAMES[4]]


def test_lines_tell_each_change_once() -> None:
    console, ticks = shown(), iter(range(100))
    view = view_for(console, 5, lambda: float(next(ticks)))
    assert isinstance(view, LineView)
    with view:
        view.advance(Step.JOIN, "Leiden")
        for voted in (0, 0, 1, 1, 1):
            view.show_task(update(voted=voted), ISOLATION)
        view.advance(Step.ROUNDS)
        view.finish(Step.ROUNDS)
    lines = console.export_text().splitlines()
    assert len(lines) == 4
    assert lines[0].endswith("s  Hospitals join with one-time tokens 1/5 (Leiden)")
    assert "waiting 0/5" in lines[1]
    assert "waiting 1/5" in lines[2]
    assert lines[3].endswith("Rounds of votes: 1 of at most 5")


def test_lines_count_the_hospitals_before_the_start() -> None:
    console = shown()
    with view_for(console, 5, lambda: 0.0) as view:
        view.show_task(update(task_pb2.TASK_STATUS_DRAFT, connected=2), {})
    assert console.export_text().endswith("connected 2/5\n")


def test_a_terminal_sees_bars_and_the_federation() -> None:
    console = shown(terminal=True)
    view = view_for(console, 5, lambda: 0.0)
    assert isinstance(view, LiveView)
    with view:
        for hospital in HOSPITALS:
            view.advance(Step.JOIN, hospital.title)
        view.show_task(update(), ISOLATION)
        view.advance(Step.ROUNDS)
        view.finish(Step.ROUNDS)
    last = console.export_text().split(Step.CONSORTIUM.value)[-1]
    assert "5/5 Uppsala" in last
    assert "1/1" in last
    assert "waiting 3/5" in last
    assert "✔ Hospitals join" in last
    assert "· Write the report" in last
