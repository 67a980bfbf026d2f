"""One `consilium` process that dies where it is told to, each place once, however often it is started again."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from service import Service

from wire.runtime.crash_points import ONCE, VARIABLE

HERE = Path(__file__).parent


class Mortal(Service):
    """A process that dies at each of `points` once, in their order."""

    def __init__(self, log: Path, *arguments: object, points: Sequence[str] = ()) -> None:
        self.name = log.stem
        self.points = tuple(points)
        self._once = log.with_suffix(".deaths")
        self._once.mkdir()
        self._mourned: set[str] = set()
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {VARIABLE: ",".join(points), ONCE: str(self._once)}
        environment |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        super().__init__([*map(str, arguments)], log, environment)

    def died_at(self) -> tuple[str, ...]:
        """Where it has died so far, itself or a process it started."""
        return tuple(point for point in self.points if (self._once / point).exists())

    def place_of_death(self) -> str:
        """Where it has died just now; fails if it ended in any other way."""
        assert self.wait() == -signal.SIGKILL, f"{self.name} ended:\n{self.text()}"
        (fresh,) = (point for point in self.died_at() if point not in self._mourned)
        self._mourned.add(fresh)
        return fresh
