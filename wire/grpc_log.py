"""TLS handshakes that gRPC refuses: they never reach Python, so they are read from what its core prints.

gRPC's C core drops a caller without a proper certificate before any interceptor runs and only writes a line
to standard error. `HandshakeLog` puts itself between file descriptor 2 and its destination, takes these
lines out and reports them; everything else passes unchanged.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import queue
import re
import select
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from enum import StrEnum
from types import TracebackType

_STDERR = 2
_PIPE_BYTES = 1 << 20
# How long an unfinished line is held back: prompts and progress bars end without a newline.
_PATIENCE_SECONDS = 0.05
_LINE = re.compile(
    rb"ssl_transport_security\.cc:\d+\] Handshake failed with error [A-Z_]+: .*OPENSSL_internal:(\w+)(.*)"
)
# What gRPC's core refuses by itself inside a connection; it tells the peer, and of us only this log.
_REFUSED_CALLS = {
    "compressed_message": re.compile(rb"call\.cc:\d+\] Compression algorithm '\w+' is disabled"),
    "oversized_headers": re.compile(
        rb"hpack_encoder\.cc:\d+\] Ignoring key value pair due to size"
    ),
}
_NOT_TLS = {b"HTTP_REQUEST", b"HTTPS_PROXY_REQUEST", b"WRONG_VERSION_NUMBER", b"UNKNOWN_PROTOCOL"}


class HandshakeRefusal(StrEnum):
    """Why a handshake failed, or a call before it became one, as a metric's label."""

    NO_CERTIFICATE = "no_certificate"
    UNTRUSTED_CERTIFICATE = "untrusted_certificate"
    EXPIRED_CERTIFICATE = "expired_certificate"
    NOT_YET_VALID_CERTIFICATE = "not_yet_valid_certificate"
    NOT_TLS = "not_tls"
    OTHER = "other"
    COMPRESSED_MESSAGE = "compressed_message"
    OVERSIZED_HEADERS = "oversized_headers"


def refusal_in(line: bytes) -> HandshakeRefusal | None:
    """The refused handshake or call that a line of gRPC's core tells of, or None for any other line."""
    match = _LINE.search(line)
    if match is None:
        told = (kind for kind, pattern in _REFUSED_CALLS.items() if pattern.search(line))
        return next(map(HandshakeRefusal, told), None)
    kind, why = match.groups()
    if kind == b"PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return HandshakeRefusal.NO_CERTIFICATE
    if kind == b"CERTIFICATE_VERIFY_FAILED":
        if b"has expired" in why:
            return HandshakeRefusal.EXPIRED_CERTIFICATE
        if b"not yet valid" in why:
            return HandshakeRefusal.NOT_YET_VALID_CERTIFICATE
        return HandshakeRefusal.UNTRUSTED_CERTIFICATE
    return HandshakeRefusal.NOT_TLS if kind in _NOT_TLS else HandshakeRefusal.OTHER


def handshakes_are_logged(environment: Mapping[str, str]) -> bool:
    """False if GRPC_VERBOSITY silences the lines this module lives on."""
    return environment.get("GRPC_VERBOSITY", "").upper() not in {"ERROR", "NONE"}


class HandshakeLog:
    """Reports refused handshakes of this process while open; a context manager.

    `on_refusal` is called on a thread of its own and may log; it should not block for long. Channels this
    process opens itself are counted too: gRPC prints the same line for both ends.
    """

    def __init__(self, on_refusal: Callable[[HandshakeRefusal], None]) -> None:
        self._on_refusal = on_refusal
        self._found: queue.SimpleQueue[HandshakeRefusal | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._open = False

    def open(self) -> None:
        """Takes over file descriptor 2."""
        _flush_stderr()
        self._destination = os.dup(_STDERR)
        self._source, sink = os.pipe()
        # Threads of gRPC's core must never wait for ours.
        with contextlib.suppress(OSError):
            fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        os.dup2(sink, _STDERR)
        os.close(sink)
        self._stopped, self._stop = os.pipe()
        # The reader only reads: a callback that logs to a full pipe would otherwise wait for itself.
        self._threads = [
            threading.Thread(target=self._read, name="handshake-log", daemon=True),
            threading.Thread(target=self._report, name="handshake-report", daemon=True),
        ]
        self._open = True
        for thread in self._threads:
            thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Gives descriptor 2 back and passes on what is still under way; may be called twice."""
        with self._closing:
            if not self._open:
                return
            self._open = False
        atexit.unregister(self.close)
        _flush_stderr()
        os.dup2(self._destination, _STDERR)
        os.close(self._stop)
        for thread in self._threads:
            thread.join()
        for descriptor in (self._source, self._stopped, self._destination):
            os.close(descriptor)

    def __enter__(self) -> HandshakeLog:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self) -> None:
        unfinished = b""
        stopping = False
        while True:
            patience = 0 if stopping else _PATIENCE_SECONDS if unfinished else None
            ready, _, _ = select.select([self._source, self._stopped], [], [], patience)
            if self._stopped in ready:
                stopping = True
            if self._source in ready:
                # A child that inherited descriptor 2 may keep the pipe open: end by `stop`, not by EOF.
                arrived = os.read(self._source, 1 << 16)
                *lines, unfinished = (unfinished + arrived).split(b"\n")
                for line in lines:
                    self._pass_on(line + b"\n")
                if arrived:
                    continue
                stopping = True
            if unfinished and (stopping or not ready):
                self._pass_on(unfinished)
                unfinished = b""
            if stopping:
                break
        self._found.put(None)

    def _pass_on(self, line: bytes) -> None:
        refusal = refusal_in(line)
        if refusal is not None:
            self._found.put(refusal)
            return
        while line:
            line = line[os.write(self._destination, line) :]

    def _report(self) -> None:
        while (refusal := self._found.get()) is not None:
            try:
                self._on_refusal(refusal)
            except Exception:
                traceback.print_exc()


def _flush_stderr() -> None:
    # Standard error may be closed or replaced by a test's capture.
    with contextlib.suppress(ValueError, OSError, AttributeError):
        sys.stderr.flush()
