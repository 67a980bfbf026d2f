"""Cells for the tests of the harness, in a module that its processes import quickly."""

from __future__ import annotations

from dataclasses import dataclass

from wire.errors import ConfigurationError


@dataclass(frozen=True)
class Sum:
    name: str
    left: float
    right: int | None


@dataclass(frozen=True)
class Total:
    total: float


def add(cell: Sum) -> Total:
    if cell.name == "broken":
        raise ConfigurationError("This cell cannot be added.", "Take another.")
    return Total(cell.left + (cell.right or 0))
