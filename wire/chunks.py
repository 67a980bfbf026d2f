"""Packed bits in pieces: one message per ballot up to 1 MiB, then 1 MiB chunks."""

from __future__ import annotations

from collections.abc import Iterator

CHUNK_BYTES = 1 << 20

SOCKET_MESSAGE_BYTES = 256 << 20
"""Agent and trainer are on one machine: a whole ballot passes between them in one message."""


def chunks(data: bytes) -> Iterator[bytes]:
    """`data` in pieces of at most 1 MiB; empty data is one empty piece."""
    for start in range(0, max(1, len(data)), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]
