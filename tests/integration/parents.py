"""A learner that starts a process of its own for every fit, and leaves it running.

As in `learners`, a folder is all that it and the test share: `child` in it names the last process.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from learners import GatedTree


class ParentTree(GatedTree):
    """Trains like a gated tree, beside a child that would sleep for an hour."""

    def __init__(self, gate: str, random_state: int) -> None:
        super().__init__(gate, random_state)
        self._folder = Path(gate)

    def fit(self, X: Any, y: Any) -> GatedTree:
        child = subprocess.Popen([sys.executable, "-ISc", "import time; time.sleep(3600)"])
        (self._folder / "child").write_text(str(child.pid), encoding="ascii")
        return super().fit(X, y)
