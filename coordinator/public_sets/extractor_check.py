"""Which extractors are taken: a file of bounded size that says by itself on which public set it was trained."""

from __future__ import annotations

from pathlib import Path

from wire.errors import EXTRACTOR_INVALID, EXTRACTOR_TOO_LARGE, Refusal
from wire.extractor_file import ExtractorHeader, read_extractor


def require_size(size_bytes: int, most: int) -> None:
    """EXTRACTOR_TOO_LARGE beyond `most` bytes."""
    if size_bytes > most:
        raise Refusal(EXTRACTOR_TOO_LARGE, size=size_bytes, most=most)


def checked_extractor(path: Path, public_set: str) -> ExtractorHeader:
    """The header of a sound file trained on the set with digest `public_set`; EXTRACTOR_INVALID otherwise."""
    header = read_extractor(path).header
    if header.public_set != public_set:
        raise Refusal(EXTRACTOR_INVALID, why="it was trained on another public set")
    return header
