"""How long to wait before trying again: doubling, capped, with full jitter so that silos do not march in step."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass
class Backoff:
    """Seconds between attempts that keep failing; `reset` after one that worked."""

    first: float = 0.25
    longest: float = 20.0
    failures: int = 0

    def next(self) -> float:
        """The next pause in seconds."""
        ceiling = min(self.longest, self.first * 2**self.failures)
        self.failures = min(self.failures + 1, 32)
        return random.uniform(self.first / 2, ceiling)  # noqa: S311  not a secret

    def reset(self) -> None:
        """Starts over."""
        self.failures = 0
