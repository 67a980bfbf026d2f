"""An extractor from its file. Only networks need torch, and only when they are applied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from silo_agent.trainer.models.extractors import linear
from silo_agent.trainer.models.protocol import Features
from wire.errors import EXTRACTOR_INVALID, ConfigurationError, Refusal
from wire.extractor_file import ExtractorFile, ExtractorKind, read_extractor

ROWS_AT_ONCE = 256
"""Rows taken at a time, and always so many: a network's last bits depend on how many rows it is shown, and what
becomes of a row must depend on that row alone."""
# Whatever weights a file has, norms of what it makes of a row can be computed in float32.
_LARGEST = 1e15

_NETWORKS = (ExtractorKind.DENOISING, ExtractorKind.CONTRASTIVE)


@dataclass(frozen=True, eq=False)
class StoredExtractor:
    """An `Extractor`; picklable, for the model that stays at home reads rows through it."""

    file: ExtractorFile

    @property
    def dimensions(self) -> int:
        """Length of a vector."""
        return self.file.header.dimensions

    @property
    def public_norm(self) -> float:
        """Largest norm of a public row's vector."""
        return self.file.header.public_norm

    def transform(self, rows: Features) -> Features:
        """As the protocol promises."""
        expected = self.file.header.row_shape
        if rows.shape[1:] != expected:
            why = f"it takes rows of shape {expected}, and these have {rows.shape[1:]}"
            raise Refusal(EXTRACTOR_INVALID, why=why)
        apply = self._apply()
        vectors = np.zeros((len(rows), self.dimensions), dtype=np.float32)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            shown = np.zeros((ROWS_AT_ONCE, *expected), dtype=rows.dtype)
            taken = len(rows[part])
            shown[:taken] = rows[part]
            with np.errstate(over="ignore", invalid="ignore"):
                vectors[part] = apply(shown)[:taken]
        return np.clip(np.nan_to_num(vectors, nan=0.0), -_LARGEST, _LARGEST)

    def _apply(self) -> Callable[[Features], Features]:
        if self.file.header.kind not in _NETWORKS:
            return linear.projection(self.file)
        try:
            from silo_agent.trainer.models.extractors.networks import forward
        except ImportError as error:
            raise ConfigurationError(
                f"The task's extractor is a network ({self.file.header.kind}) and needs torch.",
                'Install it: pip install "consilium[torch]"',
            ) from error
        return forward(self.file)


def load(path: Path) -> StoredExtractor:
    """The extractor at `path`; EXTRACTOR_INVALID if it is none."""
    return StoredExtractor(read_extractor(path))
