"""A learner that trains only while its gate is open, so that tests hold a round without a clock.

The trainer imports it by path (`learners:GatedTree`) in a process of its own; a folder is all that it and
the test share: `closed` in it shuts the gate, `entered` has one line per fit, the number of its rows.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from sklearn.tree import DecisionTreeClassifier


class GatedTree:
    """A shallow tree behind a gate: it cannot memorise, so its ballots depend on every consensus before."""

    def __init__(self, gate: str, random_state: int) -> None:
        self._gate = Path(gate)
        self._tree = DecisionTreeClassifier(max_depth=2, random_state=random_state)

    def fit(self, X: Any, y: Any) -> GatedTree:
        with (self._gate / "entered").open("a", encoding="ascii") as entered:
            entered.write(f"{len(X)}\n")
        while (self._gate / "closed").exists():
            time.sleep(0.02)
        self._tree.fit(X, y)
        return self

    def predict(self, X: Any) -> Any:
        return self._tree.predict(X)
