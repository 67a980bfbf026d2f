"""Crash points: nothing happens unless asked for; then each place once, in order, over all restarts."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from wire.runtime.crash_points import ONCE, VARIABLE, crash_point


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda process, number: killed.append((process, number)))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv(ONCE, raising=False)
    return killed


def test_nobody_dies_unasked(
    deaths: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_point("closing-begun")
    monkeypatch.setenv(VARIABLE, "")
    crash_point("closing-begun")
    monkeypatch.setenv(VARIABLE, "consensus-formed")
    crash_point("closing-begun")
    assert deaths == []


def test_the_process_itself_is_killed(
    deaths: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "closing-begun")
    crash_point("closing-begun")
    assert deaths == [(os.getpid(), signal.SIGKILL)]


def test_each_place_once_in_the_order_in_which_they_are_named(
    deaths: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, "second,first")
    monkeypatch.setenv(ONCE, str(tmp_path))
    died = []
    for place in ("first", "second", "second", "third", "first", "first", "second"):
        before = len(deaths)
        crash_point(place)
        died.append((place, len(deaths) > before))
    assert [place for place, dead in died if dead] == ["second", "first"]
    assert died.index(("second", True)) < died.index(("first", True))
