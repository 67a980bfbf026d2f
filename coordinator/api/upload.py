"""The messages a caller sends, with limits: no stream may stall, and none may consist of tiny messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple

import grpc.aio
from google.protobuf.message import Message

from wire.bounds import require_bounded
from wire.errors import MESSAGE_MALFORMED, MESSAGES_TOO_SMALL, UPLOAD_STALLED, Refusal

# Every message costs the same work however small it is. Ours carry up to 1 MiB.
_FREE_MESSAGES = 16
_BYTES_PER_MESSAGE = 16 << 10

# How much of a refused upload is read and discarded: as much as a public set of 256 MiB has.
_DISCARDED_MESSAGES = 256
_DISCARD_SECONDS = 10.0
_BRIEF_SECONDS = 1.0


class Piece(NamedTuple):
    """One message: its size on the wire and its content, unless its bytes are malformed."""

    size: int
    content: Any
    malformed: bool = False


def measuring(decode: Callable[[bytes], Any] | None) -> Callable[[bytes], Piece]:
    """A gRPC deserializer that keeps the size; bytes that are no message become a Piece marked malformed."""

    def measured(raw: bytes) -> Piece:
        if decode is None:
            return Piece(len(raw), raw)
        try:
            return Piece(len(raw), decode(raw))
        except Exception:
            # Whatever the parser raises on arbitrary bytes, they are refused.
            return Piece(len(raw), None, malformed=True)

    return measured


class Upload:
    """The messages of one call, of whatever kind. `silence` is how many seconds one may take to come."""

    def __init__(self, pieces: AsyncIterable[Piece], silence: float) -> None:
        self._source = pieces
        self._opened: AsyncIterator[Piece] | None = None
        self._silence = silence
        self._when_complete: Callable[[], Awaitable[None]] | None = None
        self._messages = 0
        self._bytes = 0

    def when_complete(self, check: Callable[[], Awaitable[None]]) -> None:
        """`check` is awaited once all is here and before anyone acts on it: it may have taken long to come."""
        self._when_complete = check

    def __aiter__(self) -> Upload:
        return self

    @property
    def _pieces(self) -> AsyncIterator[Piece]:
        # gRPC warns of a reader that was made and never used, as for a caller refused at once.
        if self._opened is None:
            self._opened = aiter(self._source)
        return self._opened

    async def __anext__(self) -> Any:
        try:
            async with asyncio.timeout(self._silence):
                piece = await anext(self._pieces)
        except TimeoutError:
            raise Refusal(UPLOAD_STALLED, seconds=f"{self._silence:g}") from None
        except StopAsyncIteration:
            # Of nothing there is nothing to act on, and gRPC may be about to end the call.
            if self._messages:
                await self._completed()
            raise
        if piece.malformed:
            raise Refusal(MESSAGE_MALFORMED, why="its bytes are not of the protocol")
        if isinstance(piece.content, Message):
            require_bounded(piece.content)
        self._messages += 1
        self._bytes += piece.size
        if self._messages > _FREE_MESSAGES + self._bytes // _BYTES_PER_MESSAGE:
            raise Refusal(MESSAGES_TOO_SMALL, messages=self._messages, bytes=self._bytes)
        return piece.content

    async def only(self) -> Any:
        """The message of a call that has just one."""
        async for content in self:
            await self._completed()
            return content
        raise Refusal(MESSAGE_MALFORMED, why="it has no message")

    async def _completed(self) -> None:
        if self._when_complete is not None:
            await self._when_complete()

    async def hear_out(self, *, briefly: bool = False) -> None:
        """Discards the rest, within bounds, before a refusal is sent; `briefly` if nobody may wait for it.

        A Python client whose write fails because the call is over reports INTERNAL in place of the status it
        was sent (grpc/grpc#36066): a refusal must wait until the client has said everything.
        """
        with suppress(TimeoutError, grpc.aio.BaseError):
            async with asyncio.timeout(_BRIEF_SECONDS if briefly else _DISCARD_SECONDS):
                heard = 0
                async for _ in self._pieces:
                    heard += 1
                    if heard == _DISCARDED_MESSAGES:
                        return


async def opening(parts: AsyncIterator[Any], what: str) -> Any:
    """The header that the first message of an upload must be; MESSAGE_MALFORMED if it is anything else."""
    async for part in parts:
        if part.HasField("header"):
            return part.header
        break
    raise Refusal(MESSAGE_MALFORMED, why=f"{what} begins with its header")
