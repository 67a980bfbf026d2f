"""What every extractor promises: rows as the learners see them become vectors of one length."""

from __future__ import annotations

from typing import Protocol

from silo_agent.trainer.models.protocol import Features
from wire.extractor_file import ExtractorFile


class Extractor(Protocol):
    """Trained on U alone, so applying it to private rows costs nothing and reveals nothing."""

    @property
    def file(self) -> ExtractorFile:
        """What it was read from; networks may start from its weights."""
        ...

    @property
    def dimensions(self) -> int:
        """Length of a vector."""
        ...

    @property
    def public_norm(self) -> float:
        """Largest Euclidean norm of a public row's vector: what private rows may be clipped to."""
        ...

    def transform(self, rows: Features) -> Features:
        """(n, dimensions) float32 of encoded rows (n, …); row by row, independent of the others.

        Every number is finite, and small enough that sums of squares are too. EXTRACTOR_INVALID for rows of
        another shape.
        """
        ...
