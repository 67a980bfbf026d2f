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

from coordinator.metrics.handshakes import HandshakeRefusal

_STDERR = 2
_PIPE_BYTES = 1 << 20
# How long an unfinished line is held back: prompts and progress bars end without a newline.
_HOLD_SECONDS = 0.05
_LINE = re.compile(
    rb"ssl_transport_security\.cc:\d+\] Handshake failed with error [A-Z_]+: .*OPENSSL_internal:(\w+)(.*)"
)
# What gRPC's core refuses by itself inside a connection: the peer gets a status, this side only a log line.
_REFUSED_CALLS = {
    HandshakeRefusal.COMPRESSED_MESSAGE: re.compile(
        rb"call\.cc:\d+\] Compression algorithm '\w+' is disabled"
    ),
    HandshakeRefusal.OVERSIZED_HEADERS: re.compile(
        rb"hpack_encoder\.cc:\d+\] Ignoring key value pair due to size"
    ),
}
_NOT_TLS = {b"HTTP_REQUEST", b"HTTPS_PROXY_REQUEST", b"WRONG_VERSION_NUMBER", b"UNKNOWN_PROTOCOL"}


def refusal_in(line: bytes) -> HandshakeRefusal | None:
    """The refused handshake or call that a line of gRPC's core reports, or None for any other line."""
    match = _LINE.search(line)
    if match is None:
        found = (kind for kind, pattern in _REFUSED_CALLS.items() if pattern.search(line))
        return next(found, None)
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
    """False if GRPC_VERBOSITY suppresses the lines this module reads."""
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
        """Restores descriptor 2 and passes on what is still in the pipe; may be called twice."""
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

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read(self) -> None:
        unfinished, stopping = b"", False
        while True:
            seconds = _HOLD_SECONDS if unfinished else None
            sources = [self._source, self._stopped]
            ready, _, _ = select.select(sources, [], [], 0 if stopping else seconds)
            stopping = stopping or self._stopped in ready
            if self._source in ready:
                # A child that inherited descriptor 2 may keep the pipe open: end by `stop`, not by EOF.
                arrived = os.read(self._source, 1 << 16)
                unfinished = self._pass_on_lines(unfinished + arrived)
                if arrived:
                    continue
                stopping = True
            if stopping or not ready:
                self._pass_on(unfinished)
                unfinished = b""
            if stopping:
                break
        self._found.put(None)

    def _pass_on_lines(self, text: bytes) -> bytes:
        """Passes on every whole line; what follows the last one."""
        *lines, unfinished = text.split(b"\n")
        for line in lines:
            self._pass_on(line + b"\n")
        return unfinished

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
