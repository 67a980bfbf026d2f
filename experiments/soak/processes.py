"""The soak's processes: real ones that are killed and started again, none of which outlives the soak."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from experiments.demo import die_with_parent
from experiments.demo.processes import until
from wire.errors import ConsiliumError
from wire.net.proxy import without_proxy

CONSILIUM = ("-c", "from wire.runtime.cli import main; main()")
"""Arguments to Python that run the command `consilium`."""
_END_SECONDS = 15.0
_TAIL_LINES = 6


class SoakFailed(ConsiliumError):
    """The federation did not do what it should; the sentence says what."""

    def __init__(self, sentence: str, hint: str = "") -> None:
        super().__init__("SOAK_FAILED", sentence, hint)


@dataclass
class Service:
    """A process that is meant to run. Killed and started again, it has several lives."""

    name: str
    folder: Path
    arguments: Sequence[str]
    """For Python."""
    life: int = 0
    """How often it has been started."""
    _running: subprocess.Popen[bytes] | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def log(self) -> Path:
        """What it printed in all its lives."""
        return self.folder / f"{self.name}.log"

    @property
    def pid(self) -> int | None:
        """Its process number; None between two lives."""
        return self._running.pid if self._running else None

    def start(self) -> None:
        """Starts the process."""
        with self.log.open("ab") as output:
            self._running = launch(self.folder, self.arguments, stdout=output, stderr=output)
        self.life += 1

    async def kill_and_restart(self, downtime: float) -> None:
        """Kills it with -9 and starts it again after `downtime` seconds; two kills of one process do not overlap."""
        async with self._turn:
            if self._running is None:
                return
            process, self._running = self._running, None
            process.kill()
            process.wait()
            await asyncio.sleep(downtime)
            self.start()

    def check(self) -> None:
        """SoakFailed if it has ended by itself."""
        if self._running is not None and (status := self._running.poll()) is not None:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
            words = "\n       ".join(["", *lines[-_TAIL_LINES:]])
            raise SoakFailed(f"{self.name} ended by itself with status {status}.{words}")

    def terminate(self) -> None:
        """SIGTERM, if it runs."""
        if self._running is not None:
            self._running.send_signal(signal.SIGTERM)

    async def wait_for_exit(self) -> bool:
        """Waits for its exit; False if it had to be killed after `_END_SECONDS`."""
        process, self._running = self._running, None
        if process is None:
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await until(lambda: process.poll() is not None)
                return True
        process.kill()
        process.wait()
        return False

    def kill(self) -> None:
        """Kills it if it still runs."""
        process, self._running = self._running, None
        if process is not None:
            process.kill()
            process.wait()


class Services:
    """Every service of a soak in the order of their making; leaving the context kills what still runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.all: list[Service] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for service in self.all:
            service.kill()

    def serve(self, name: str, *arguments: object) -> Service:
        """Starts Python with `arguments` as the service `name`."""
        service = Service(name, self._folder, tuple(map(str, arguments)))
        self.all.append(service)
        service.start()
        return service


def launch(
    folder: Path,
    arguments: Sequence[str],
    *,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Python with `arguments`, in `folder`; it dies with this process and does not hear a Ctrl-C at our terminal."""
    # -P: the folder has a sub-folder `coordinator`, which is no package.
    command = [sys.executable, "-P", *arguments]
    # What a killed process leaves in the temporary folder goes with ours.
    variables = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TMPDIR": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-IS", die_with_parent.__file__, str(os.getpid()), *command],
        cwd=folder,
        env=without_proxy(os.environ) | variables,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


async def consilium(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    command = (*CONSILIUM, *map(str, arguments))
    process = launch(folder, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        output, errors = await asyncio.to_thread(process.communicate)
    finally:
        process.kill()
        process.wait()
    return subprocess.CompletedProcess(
        command, process.returncode, output.decode(), errors.decode()
    )


def listens(port: int) -> bool:
    """Whether someone listens on a port of loopback."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
