"""A tiny soak: real processes killed and lines cut in a handful of rounds; nothing is lost, nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from patience import PATIENCE

from experiments.soak.memory import Memory
from experiments.soak.run import Plan, soak
from experiments.soak.schedule import Fault, FaultKind, Schedule

SILOS, ROUNDS = 3, 6


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A Unix socket's path must be short; pytest's folders are not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


class Quiet:
    """Hears everything, says nothing."""

    def tell(self, doing: str) -> None:
        pass

    def rounds(self, closed: int, faults: Mapping[FaultKind, int], memory: Memory) -> None:
        pass


def left_running(folder: Path) -> list[str]:
    """Command lines of processes that run in `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.joinpath("cwd").readlink().is_relative_to(folder):
                found.append(process.joinpath("cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def test_faults_of_every_kind_change_nothing_and_leave_nothing(scratch: Path) -> None:
    schedule = Schedule(
        [
            Fault(2, 0.0, FaultKind.RESET, 0, 0.0),
            Fault(2, 0.0, FaultKind.AGENT, 1, 0.1),
            Fault(3, 0.0, FaultKind.BLACKHOLE, 2, 0.5),
            Fault(3, 0.0, FaultKind.TRAINERS, None, 0.1),
            Fault(4, 0.0, FaultKind.STALL, 0, 0.5),
            Fault(4, 0.02, FaultKind.AGENT, 2, 0.1),
            Fault(5, 0.0, FaultKind.SLOW, 1, 0.5),
            Fault(5, 0.02, FaultKind.COORDINATOR, None, 0.1),
        ]
    )
    outcome = asyncio.run(soak(Plan(SILOS, ROUNDS, 1), schedule, scratch, Quiet()))

    assert outcome.consensus == outcome.expected
    assert len(set(outcome.consensus)) == ROUNDS
    assert dict(outcome.faults) == {
        kind: count for kind, count in schedule.counts.items() if count > 0
    }
    short = [promise for promise, kept in outcome.promises.items() if kept is None]
    assert all("memory" in promise for promise in short), "six rounds say nothing of a slope"
    assert outcome.kept, outcome.promises
    assert outcome.ballots_proven == SILOS * ROUNDS
    # Restarts are lives of their own: both silos that were not killed had to connect anew.
    assert outcome.reconnects >= 2
    assert outcome.resets >= 2
    assert {sample.life for sample in outcome.memory.of(["coordinator"])} == {1, 2}
    assert left_running(scratch) == []


def test_an_interrupted_soak_leaves_neither_processes_nor_files(
    scratch: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    command = [sys.executable, "-m", "experiments.soak", "--silos", "2", "--rounds", "1000"]
    with subprocess.Popen(
        [*command, "--out", out],
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("round 0"):
                break
        # Coordinator, lines, trainers, two agents; one of them may be between two lives.
        assert len(left_running(scratch)) >= 4
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    assert left_running(scratch) == []
    assert list(scratch.iterdir()) == []
    assert not out.exists()
