"""What every extractor promises: rows as the learners see them become vectors of one length."""

from __future__ import annotations

from typing import Protocol

from silo_agent.models.protocol import Features


class Extractor(Protocol):
    """Trained on U alone, so applying it to private rows costs nothing and reveals nothing."""

    @property
    def dimensions(self) -> int:
        """Length of a vector."""
        ...

    def transform(self, rows: Features) -> Features:
        """(n, dimensions) float32 of encoded rows (n, …); row by row, independent of the others."""
        ...
