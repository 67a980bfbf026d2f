"""A learner that would betray a round trained twice; the trainer imports it by path (`turning:Turning`)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


class Turning:
    """Votes by a line that turns with every step it takes and leans on the consensus before."""

    def __init__(self) -> None:
        self._angle = 0.0
        self._lean = 0.0

    def advance(self, private: Any, pseudo: Any, steps: int, seed: int) -> None:
        self._angle += 0.7 * steps
        self._lean += float(np.mean(private.labels if pseudo is None else pseudo.labels)) - 0.5

    def predict(self, X: Any) -> Any:
        normal = [math.cos(self._angle), math.sin(self._angle)]
        return (X @ np.asarray(normal) > self._lean).astype(np.int64)
