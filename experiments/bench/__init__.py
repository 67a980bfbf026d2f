"""Benchmarks against the promises made: one module per thing measured, one row per number."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measurement:
    """One number of a benchmark and, where something was promised, whether it is kept."""

    name: str
    value: float
    unit: str
    target: str | None = None
    """The promise in words, such as "≤ 4"; None if the number is only reported."""
    met: bool | None = None
    """Whether the promise is kept; None if there is none."""

    @classmethod
    def at_most(cls, name: str, value: float, unit: str, limit: float) -> Measurement:
        """A number that must not exceed `limit`."""
        return cls(name, value, unit, f"≤ {limit:g}", value <= limit)

    @classmethod
    def at_least(cls, name: str, value: float, unit: str, limit: float) -> Measurement:
        """A number that must reach `limit`."""
        return cls(name, value, unit, f"≥ {limit:g}", value >= limit)
