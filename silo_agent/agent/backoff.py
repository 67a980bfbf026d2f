"""Exponential backoff with a cap and jitter, so that silos do not retry in step."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass
class Backoff:
    """Pauses, in seconds, between failing attempts; `reset` after one that succeeded."""

    first: float = 0.25
    longest: float = 20.0
    failures: int = 0

    def next(self) -> float:
        """The next pause in seconds."""
        ceiling = min(self.longest, self.first * 2**self.failures)
        self.failures = min(self.failures + 1, 32)
        return random.uniform(self.first / 2, ceiling)  # noqa: S311  not a secret

    def reset(self) -> None:
        """Makes the next pause the shortest again."""
        self.failures = 0
