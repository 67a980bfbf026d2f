"""Something that is redrawn on a terminal while a block runs."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self


class Redrawn(Protocol):
    """What rich redraws: a `Live` or a `Progress`."""

    def start(self) -> None:
        """Begins to draw."""

    def stop(self) -> None:
        """Draws for the last time and leaves the terminal as it was."""


class LiveDisplay:
    """Shown from the beginning of a `with` block to its end."""

    def __init__(self, shown: Redrawn) -> None:
        self._shown = shown

    def __enter__(self) -> Self:
        self._shown.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._shown.stop()


class Silent:
    """Draws nothing: for output that only ever grows by lines."""

    def start(self) -> None:
        """Nothing to do."""

    def stop(self) -> None:
        """Nothing to do."""
