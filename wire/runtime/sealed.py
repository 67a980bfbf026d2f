"""A stream of bytes under a passphrase: scrypt for the key, AES-256-GCM over chunks in the STREAM construction.

STREAM is the online authenticated encryption of Hoang, Reyhanitabar, Rogaway and Vizár (CRYPTO 2015): chunk number i
has the nonce `prefix || i || last`, so chunks cannot be dropped, moved, repeated or cut off at the end unnoticed.

    header   b"consilium-sealed-1\\n" || log2 N || salt (16 bytes) || prefix (7 bytes)
    key      scrypt(passphrase, salt, N, r = 8, p = 1), 32 bytes
    chunk i  AES-256-GCM(key, nonce = prefix || i as 4 bytes, big-endian || last as 1 byte, associated data = header)

Every chunk but the last has 64 KiB of plaintext; the last has less or as much, and may be empty.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Callable
from typing import IO, Final, cast

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from wire.errors import ConfigurationError

MAGIC: Final = b"consilium-sealed-1\n"
CHUNK: Final = 64 << 10

_TAG = 16
_SALT = 16
_PREFIX = 7
_HEADER = len(MAGIC) + 1 + _SALT + _PREFIX
_LOG_COST = 17
"""128 MiB and a few tenths of a second for each guess."""
# What a header may ask of whoever reads it: up to 1 GiB.
_COSTS = range(14, 21)


class SealingWriter(io.RawIOBase):
    """Writes what it is given, sealed, to `out`; `finish` writes the last chunk, without which it cannot be opened."""

    def __init__(self, out: IO[bytes], passphrase: str, log_cost: int = _LOG_COST) -> None:
        salt = secrets.token_bytes(_SALT)
        self._header = MAGIC + bytes([log_cost]) + salt + secrets.token_bytes(_PREFIX)
        self._cipher = _cipher(passphrase, salt, log_cost)
        self._out = out
        self._waiting = bytearray()
        self._number = 0
        out.write(self._header)

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, data: object) -> int:
        """Takes all of `data`."""
        given = memoryview(data).cast("B")  # type: ignore[arg-type]
        self._waiting += given
        # The last chunk is only known to be the last when nothing follows.
        while len(self._waiting) > CHUNK:
            self._seal(bytes(self._waiting[:CHUNK]), last=False)
            del self._waiting[:CHUNK]
        return len(given)

    def finish(self) -> None:
        """Seals what is left as the last chunk."""
        self._seal(bytes(self._waiting), last=True)
        self._waiting.clear()

    def _seal(self, plain: bytes, *, last: bool) -> None:
        nonce = _nonce(self._header, self._number, last=last)
        self._out.write(self._cipher.encrypt(nonce, plain, self._header))
        self._number += 1


class OpeningReader(io.RawIOBase):
    """Reads what a `SealingWriter` wrote; every byte it returns was authenticated before.

    ConfigurationError for a wrong passphrase, and for anything that was changed, moved, left out or cut off. Only
    who reads to the end knows that the end is there.
    """

    def __init__(self, source: IO[bytes], passphrase: str) -> None:
        self._source = source
        self._header = _exactly(source, _HEADER)
        log_cost = self._header[len(MAGIC)] if len(self._header) == _HEADER else 0
        if not self._header.startswith(MAGIC) or log_cost not in _COSTS:
            raise _damaged()
        salt = self._header[len(MAGIC) + 1 :][:_SALT]
        self._cipher = _cipher(passphrase, salt, log_cost)
        self._next = _exactly(source, CHUNK + _TAG)
        self._plain = b""
        self._number = 0
        self._ended = False

    def readable(self) -> bool:
        """Always."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes; all that is left if it is negative, nothing at the end."""
        parts = []
        while size != 0 and (self._plain or not self._ended):
            if not self._plain:
                self._open_next()
            part = self._plain if size < 0 else self._plain[:size]
            self._plain = self._plain[len(part) :]
            size = size if size < 0 else size - len(part)
            parts.append(part)
        return b"".join(parts)

    def _open_next(self) -> None:
        sealed, self._next = self._next, _exactly(self._source, CHUNK + _TAG)
        self._ended = not self._next
        nonce = _nonce(self._header, self._number, last=self._ended)
        try:
            self._plain = self._cipher.decrypt(nonce, sealed, self._header)
        except (InvalidTag, ValueError):
            raise (_damaged() if self._number else _wrong()) from None
        self._number += 1


def opened(source: IO[bytes], passphrase: Callable[[], str]) -> IO[bytes]:
    """What `source` holds, sealed or not; asks for the passphrase only if it is sealed."""
    start = _exactly(source, len(MAGIC))
    whole = cast("IO[bytes]", _Joined(start, source))
    return cast("IO[bytes]", OpeningReader(whole, passphrase())) if start == MAGIC else whole


class _Joined(io.RawIOBase):
    """Bytes that were read ahead, then the rest."""

    def __init__(self, start: bytes, rest: IO[bytes]) -> None:
        self._start = start
        self._rest = rest

    def read(self, size: int = -1) -> bytes:
        """As a file's: fewer bytes than asked for do not mean the end."""
        if not self._start:
            return self._rest.read(size)
        if size < 0:
            found, self._start = self._start + self._rest.read(), b""
            return found
        found, self._start = self._start[:size], self._start[size:]
        return found


def _cipher(passphrase: str, salt: bytes, log_cost: int) -> AESGCM:
    key = Scrypt(salt=salt, length=32, n=1 << log_cost, r=8, p=1)
    return AESGCM(key.derive(passphrase.encode()))


def _nonce(header: bytes, number: int, *, last: bool) -> bytes:
    return header[-_PREFIX:] + number.to_bytes(4, "big") + bytes([last])


def _exactly(source: IO[bytes], size: int) -> bytes:
    """`size` bytes, fewer only at the end; a pipe gives what it has."""
    found = bytearray()
    while len(found) < size and (part := source.read(size - len(found))):
        found += part
    return bytes(found)


def _wrong() -> ConfigurationError:
    return ConfigurationError(
        "The encrypted backup does not open: the passphrase is another, or the file is damaged.",
        "Give the passphrase it was made with, and the whole file.",
    )


def _damaged() -> ConfigurationError:
    return ConfigurationError(
        "The encrypted backup is damaged, was changed, or ends too early.", "Take another copy."
    )
