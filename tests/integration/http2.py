"""HTTP/2 by hand, over TLS: for peers that do what no gRPC library would do."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from wire.identity.files import IdentityFiles

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    *(0, 1, 3, 4, 6, 7, 8, 9),
)
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4
MAX_FRAME = 16384
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_WINDOW = 65535


class Frame(NamedTuple):
    """One frame as it came."""

    kind: int
    flags: int
    stream: int
    payload: bytes


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame to send."""
    return struct.pack("!IBI", len(payload) << 8 | kind, flags, stream) + payload


def header_block(headers: Iterable[tuple[str, str]]) -> bytes:
    """HPACK without table or Huffman code: every header spelled out."""
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in headers)


def _text(text: str) -> bytes:
    data = text.encode()
    if len(data) < 127:
        return bytes([len(data)]) + data
    rest, prefix = len(data) - 127, bytearray([127])
    while rest >= 128:
        prefix.append(rest % 128 + 128)
        rest //= 128
    return bytes([*prefix, rest]) + data


def call_headers(method: str, *more: tuple[str, str]) -> list[tuple[str, str]]:
    """What a gRPC client sends to begin a call."""
    return [
        (":method", "POST"),
        (":scheme", "https"),
        (":path", method),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *more,
    ]


def message(payload: bytes, *, compressed: bool = False) -> bytes:
    """gRPC's framing of one message."""
    return struct.pack("!BI", compressed, len(payload)) + payload


def tls_context(files: IdentityFiles | None, authorities_pem: bytes) -> ssl.SSLContext:
    """A client that trusts `authorities_pem` and shows the certificate in `files`, if any."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authorities_pem.decode())
    context.set_alpn_protocols(["h2"])
    if files is not None:
        context.load_cert_chain(files.certificate_path, files.key_path)
    return context


class Peer:
    """One connection. `send` ignores the protocol's rules; `upload` keeps its flow control."""

    def __init__(self, port: int, context: ssl.SSLContext, patience: float = 20.0) -> None:
        raw = socket.create_connection(("127.0.0.1", port), timeout=patience)
        self.socket = context.wrap_socket(raw, server_hostname="localhost")
        self._unread = b""
        self._next_stream = 1
        self._windows = {0: _WINDOW}
        self._stream_window = _WINDOW
        self.heard: list[Frame] = []
        self.send(_PREFACE + frame(SETTINGS, 0, 0))

    def send(self, data: bytes) -> None:
        """Bytes as they are."""
        self.socket.sendall(data)

    def begin(self, headers: Iterable[tuple[str, str]], *, flags: int = END_HEADERS) -> int:
        """Opens a stream and leaves it open; its number."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        self._windows[stream] = self._stream_window
        self.send(frame(HEADERS, flags, stream, header_block(headers)))
        return stream

    def upload(self, stream: int, data: bytes) -> int:
        """Sends as much of `data` as the server takes; the bytes sent until it closed the stream."""
        sent = 0
        while sent < len(data) and not self.ended(stream):
            room = min(self._windows[0], self._windows[stream], MAX_FRAME, len(data) - sent)
            if room <= 0:
                if self.read() is None:
                    break
                continue
            try:
                self.send(frame(DATA, 0, stream, data[sent : sent + room]))
            except OSError:
                break
            sent += room
            self._windows[0] -= room
            self._windows[stream] -= room
        return sent

    def read(self) -> Frame | None:
        """The next frame, answered if it must be; None if the connection is over."""
        try:
            head = self._take(9)
            length, kind, flags, stream = (
                int.from_bytes(head[:3]),
                head[3],
                head[4],
                int.from_bytes(head[5:]),
            )
            got = Frame(kind, flags, stream, self._take(length))
        except (EOFError, OSError):
            return None
        self.heard.append(got)
        with suppress(OSError):
            self._answer(got)
        return got

    def ended(self, stream: int) -> bool:
        """True if the server has closed the stream or the connection."""
        return any(
            (f.stream == stream and (f.kind == RST_STREAM or f.flags & END_STREAM))
            or f.kind == GOAWAY
            for f in self.heard
            if f.kind in (RST_STREAM, HEADERS, DATA, GOAWAY)
        )

    def until_ended(self, stream: int) -> bytes:
        """Reads until the stream or the connection is over; every header byte of the answer."""
        while not self.ended(stream):
            if self.read() is None:
                break
        blocks = [f.payload for f in self.heard if f.kind == HEADERS and f.stream == stream]
        return b"".join(blocks)

    def until_closed(self) -> None:
        """Reads until the server has closed the connection; TimeoutError if it never does."""
        self.socket.setblocking(True)
        while self.read() is not None:
            pass

    def close(self) -> None:
        """Hangs up."""
        self.socket.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, count: int) -> bytes:
        while len(self._unread) < count:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._unread += data
        taken, self._unread = self._unread[:count], self._unread[count:]
        return taken

    def _answer(self, got: Frame) -> None:
        if got.kind == SETTINGS and not got.flags & ACK:
            for position in range(0, len(got.payload), 6):
                key, value = struct.unpack_from("!HI", got.payload, position)
                if key == 4:
                    grown = value - self._stream_window
                    self._stream_window = value
                    self._windows = {
                        s: window + (grown if s else 0) for s, window in self._windows.items()
                    }
            self.send(frame(SETTINGS, ACK, 0))
        elif got.kind == PING and not got.flags & ACK:
            self.send(frame(PING, ACK, 0, got.payload))
        elif got.kind == WINDOW_UPDATE:
            self._windows[got.stream] = self._windows.get(got.stream, 0) + int.from_bytes(
                got.payload
            )
