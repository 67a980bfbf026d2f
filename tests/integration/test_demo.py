"""The demo as a person runs it: real processes, a real federation, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import PATIENCE

CONSILIUM = Path(sys.executable).with_name("consilium")
# A bound on being stuck, not on being slow: a busy machine with one core stays far below it.


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder with a short name: pytest's own are too long for a Unix socket."""
    folder = Path(tempfile.mkdtemp(prefix="cd-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def start(scratch: Path, *options: str) -> subprocess.Popen[str]:
    """The demo in a session of its own, with all its files below `scratch`."""
    return subprocess.Popen(
        [CONSILIUM, "demo", "--report", "report", *options],
        cwd=scratch,
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if "--json" not in options else subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def processes_of(scratch: Path) -> list[str]:
    """Command lines that mention `scratch`: the coordinator, agents, trainers and commands of its demo."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(scratch) in line:
            found.append(line)
    return found


def gone(scratch: Path) -> bool:
    deadline = time.monotonic() + PATIENCE
    while processes_of(scratch) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not processes_of(scratch)


def test_five_hospitals_learn_more_together_than_alone(scratch: Path) -> None:
    demo = start(scratch, "--seed", "1", "--json")
    output, _ = demo.communicate()
    assert demo.returncode == 0
    result = json.loads(output)
    hospitals = result["hospitals"]
    assert len({hospital["name"] for hospital in hospitals}) == 5
    assert len({hospital["learner"] for hospital in hospitals}) == 5
    assert result["mean"]["consilium"] >= result["mean"]["alone"]
    # Two planes of one bit for each of 370 rows, padded to whole bytes.
    assert result["ballot_bytes"] == 94
    assert 1 <= result["rounds"] <= 5
    for hospital in hospitals:
        assert hospital["bytes_up"] == result["rounds"] * 94
        assert hospital["bytes_down"] > result["rounds"] * 94
    assert [one["ballots"] for one in result["consensus"]] == [5] * result["rounds"]
    page = (scratch / result["report"]).read_text(encoding="utf-8")
    assert page.count("data:image/svg+xml") == len(result["plots"]) == 3
    for plot in result["plots"]:
        assert f'alt="Plot: {plot}' in page
    assert "consilium demo --seed 1" in page
    assert not processes_of(scratch)
    assert [path.name for path in scratch.iterdir()] == ["report"]


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("Consilium demo", signal.SIGINT),
        ("Make the consortium", signal.SIGINT),
        ("one-time tokens 2/5", signal.SIGTERM),
        ("round 1 of at most", signal.SIGINT),
    ],
    ids=["at once", "consortium made", "joining", "in a round"],
)
def test_a_stopped_demo_leaves_nothing_behind(
    scratch: Path, moment: str, number: signal.Signals
) -> None:
    demo = start(scratch)
    assert demo.stdout is not None
    with demo.stdout as lines:
        assert any(moment in line for line in lines), f"{moment} was never said"
        demo.send_signal(number)
        rest = lines.read()
    assert demo.wait(PATIENCE) == 128 + number, rest
    assert "Traceback" not in rest
    assert not processes_of(scratch)
    assert not list(scratch.iterdir())


def test_even_kill_9_leaves_no_process_behind(scratch: Path) -> None:
    demo = start(scratch)
    assert demo.stdout is not None
    with demo.stdout as lines:
        assert any("agent and trainer 1/5" in line for line in lines)
        assert processes_of(scratch)
        demo.kill()
        demo.wait(PATIENCE)
        assert gone(scratch), processes_of(scratch)


def test_a_folder_in_use_is_refused_before_anything_starts(scratch: Path) -> None:
    (scratch / "mine").mkdir()
    (scratch / "mine" / "thesis.txt").write_text("precious")
    demo = start(scratch, "--keep", "mine")
    output, _ = demo.communicate()
    assert demo.returncode == 1
    assert "is not empty" in output
    assert [path.name for path in (scratch / "mine").iterdir()] == ["thesis.txt"]
