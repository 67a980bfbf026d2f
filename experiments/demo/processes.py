"""The demo's processes: real ones, started with the real command, none of which outlives the demo."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from wire.errors import ConsiliumError

T = TypeVar("T")

_DIE_WITH_PARENT = Path(__file__).with_name("die_with_parent.py")
_LOOK_SECONDS = 0.05
_TAIL_LINES = 6


class DemoFailed(ConsiliumError):
    """A part of the demo did not do what it should; the sentence says which and shows the last lines it printed."""

    def __init__(self, sentence: str, hint: str = "") -> None:
        super().__init__("DEMO_FAILED", sentence, hint)


@dataclass(frozen=True, eq=False)
class Child:
    """A process in a group of its own, and the file that takes what it prints."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    def ended(self) -> bool:
        """True once it has ended. It is not reaped: its group's number cannot become another's yet."""
        if self.popen.returncode is not None:
            return True
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.popen.pid, look) is not None

    def terminate(self) -> None:
        """Asks it to end; an agent ends its trainer by itself."""
        if not self.ended():
            self.popen.terminate()

    def kill_and_reap(self) -> int:
        """Kills whatever is left of its group, reaps it and returns its exit status."""
        if self.popen.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.popen.pid, signal.SIGKILL)
        return self.popen.wait()

    def failed(self) -> DemoFailed:
        """The error that says how it ended, with the last lines it printed."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        words = "\n       ".join(["", *lines[-_TAIL_LINES:]])
        return DemoFailed(
            f"{self.name} ended with status {self.kill_and_reap()}.{words}",
            "Run it again with `--keep DIR` to keep every log.",
        )


class Processes:
    """Every process of the demo, started in `folder`. Leaving the context ends them all.

    `program` comes before the arguments of each, and `patience` is the time in seconds that a process has to
    end by itself.
    """

    def __init__(
        self,
        folder: Path,
        program: Sequence[str] = (str(Path(sys.executable).with_name("consilium")),),
        patience: float = 10.0,
    ) -> None:
        self._folder = folder
        self._program = program
        self._patience = patience
        self._logs = folder / "logs"
        self._logs.mkdir()
        self._services: list[Child] = []
        self._commands: set[Child] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def serve(self, name: str, *arguments: str) -> Child:
        """Starts `consilium ARGUMENTS`, which is to run until it is stopped."""
        child = self._start(name, arguments)
        self._services.append(child)
        return child

    async def run(self, name: str, *arguments: str) -> None:
        """Runs `consilium ARGUMENTS` to its end; DemoFailed if that is a bad one."""
        child = self._start(name, arguments)
        self._commands.add(child)
        await until(child.ended)
        if child.kill_and_reap() != 0:
            raise child.failed()
        self._commands.discard(child)

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """The outcome of `work`; DemoFailed if a service ends before it is done."""
        working, exiting = asyncio.ensure_future(work), asyncio.ensure_future(self._first_exit())
        try:
            await asyncio.wait({working, exiting}, return_when=asyncio.FIRST_COMPLETED)
            if exiting.done():
                raise exiting.result().failed()
            return await working
        finally:
            working.cancel()
            exiting.cancel()
            await asyncio.gather(working, exiting, return_exceptions=True)

    async def stop(self) -> None:
        """Ends every process: silos first, so that they can sign off, the coordinator last."""
        coordinator, silos = self._services[:1], self._services[1:]
        await self._end([*self._commands, *silos])
        await self._end(coordinator)
        self._commands.clear()
        self._services.clear()

    async def _end(self, children: Sequence[Child]) -> None:
        """Asks all to end, waits a while, then kills what is left of each."""
        for child in children:
            child.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                await until(lambda: all(child.ended() for child in children))
        for child in children:
            child.kill_and_reap()

    async def _first_exit(self) -> Child:
        await until(lambda: any(child.ended() for child in self._services))
        return next(child for child in self._services if child.ended())

    def _start(self, name: str, arguments: Sequence[str]) -> Child:
        log = self._logs / f"{name.replace(' ', '-')}.log"
        # No `await` from here until the caller has noted the child: a Ctrl-C cannot come in between.
        with log.open("wb") as output:
            popen = subprocess.Popen(
                [
                    sys.executable,
                    "-IS",
                    _DIE_WITH_PARENT,
                    str(os.getpid()),
                    *self._program,
                    *arguments,
                ],
                cwd=self._folder,
                # Five trainers share the machine's cores; each with all threads would only wait for the others.
                env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # A Ctrl-C at the terminal reaches the demo alone, which then ends the others in order.
                start_new_session=True,
            )
        return Child(name, popen, log)


async def until(condition: Callable[[], bool]) -> None:
    """Returns once `condition` holds; it is looked at twenty times a second."""
    # Nothing here is notified of what another process does.
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_SECONDS)


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on at this moment, on loopback."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
