"""A real HTTP CONNECT proxy with basic authentication, as a process of its own.

It prints `host:port` once it listens and appends one line per request to its log: `200 name:port`, `407 name:port`,
`502 name:port`. With `--resolve NAME=ADDRESS` it alone knows where a name leads, as a hospital's proxy does.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

USER, PASSWORD = "ada", "pass@word"


@dataclass(frozen=True)
class RunningProxy:
    """Where it listens and what it has been asked."""

    address: str
    log: Path

    @property
    def url(self) -> str:
        """As a person would write the setting."""
        return f"http://{USER}:pass%40word@{self.address}"

    @property
    def wrong_url(self) -> str:
        """The same with a password that is not right."""
        return f"http://{USER}:guess@{self.address}"

    def requests(self) -> list[str]:
        """The log's lines."""
        return self.log.read_text().splitlines()


@contextlib.contextmanager
def running_proxy(folder: Path, **resolve: str) -> Iterator[RunningProxy]:
    """A proxy process for ada; `resolve` maps names (dots as underscores) to addresses."""
    log = folder / "proxy.log"
    log.touch()
    names = [f"{name.replace('_', '.')}={address}" for name, address in resolve.items()]
    command = [
        sys.executable,
        __file__,
        "--log",
        str(log),
        *[f"--resolve={name}" for name in names],
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield RunningProxy(process.stdout.readline().strip(), log)
        finally:
            process.terminate()


class ConnectProxy:
    """Opens tunnels for whoever knows the password."""

    def __init__(self, log: Path, resolve: dict[str, str]) -> None:
        self._log = log
        self._resolve = resolve
        self._wanted = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One caller, from CONNECT to the end of the tunnel."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, target, _ = head.splitlines()[0].split()
            assert method == "CONNECT"
            if f"Basic {self._wanted}" not in head:
                self._answer(writer, 407, "Proxy Authentication Required", target)
                return
            host, _, port = target.rpartition(":")
            try:
                there = await asyncio.open_connection(self._resolve.get(host, host), int(port))
            except OSError:
                self._answer(writer, 502, "Bad Gateway", target)
                return
            self._answer(writer, 200, "Connection established", target)
            await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _answer(self, writer: asyncio.StreamWriter, status: int, reason: str, target: str) -> None:
        with self._log.open("a") as log:
            log.write(f"{status} {target}\n")
        writer.write(f"HTTP/1.1 {status} {reason}\r\n\r\n".encode())


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies one direction of a tunnel."""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


async def main() -> None:
    """Serves until terminated."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--resolve", action="append", default=[])
    options = parser.parse_args()
    names = dict(entry.split("=") for entry in options.resolve)
    server = await asyncio.start_server(ConnectProxy(options.log, names).serve, "127.0.0.1", 0)
    print(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
