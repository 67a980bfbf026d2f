"""Every decoder, coverage-guided: a fixed number of runs from a fixed seed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from servicers import SERVICERS
from targets import TARGETS

ALL = {**TARGETS, "servicers": SERVICERS}

pytestmark = pytest.mark.skipif(
    find_spec("atheris") is None, reason="atheris has wheels for Linux on x86-64 only"
)


@pytest.mark.parametrize("name", ALL)
def test_thousands_of_guided_inputs_find_nothing(name: str, tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(Path(__file__).with_name("guided.py")),
        name,
        f"-runs={ALL[name].runs}",
        "-seed=20310506",
        "-print_final_stats=1",
    ]
    # libFuzzer ends without tidying up.
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert f"Done {ALL[name].runs} runs" in done.stderr
