"""A task folder without a disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from silo_agent.trainer.privacy.silo_without_data import InMemoryFiles


class MemoryFolder(InMemoryFiles):
    """A `Folder` that lasts as long as the process: nothing crashes here, so nothing has to be read again."""

    def __init__(self) -> None:
        super().__init__()
        self._ballots: dict[int, tuple[bytes, bytes]] = {}
        self._learner: tuple[int, Any] | None = None

    def rounds_voted(self) -> tuple[int, ...]:
        """The rounds for which a ballot was made."""
        return tuple(sorted(self._ballots))

    def ballot(self, round_number: int) -> bytes | None:
        """The ballot of a round, if it was made before."""
        return self._ballots[round_number][0] if round_number in self._ballots else None

    def kept_ballot(self, round_number: int) -> tuple[bytes, bytes] | None:
        """The ballot of a round and what was kept with it."""
        return self._ballots.get(round_number)

    def keep_ballot(self, round_number: int, ballot: bytes, record: bytes) -> None:
        """Keeps a ballot and its record."""
        self._ballots[round_number] = (ballot, record)

    def learner(self, round_number: int) -> Any | None:
        """The learner as it was after round `round_number`."""
        return self._learner[1] if self._learner and self._learner[0] == round_number else None

    def latest_learner(self, before: int) -> Any | None:
        """The learner as it was after the last round before `before`, if there was one."""
        return self._learner[1] if self._learner and self._learner[0] < before else None

    def keep_learner(self, round_number: int, learner: Any) -> None:
        """Keeps the learner's state after a round, and no other."""
        self._learner = (round_number, learner)

    def keep_model(self, model: Any) -> None:
        """Not supported: the caller of `run_federation` keeps the models."""
        raise NotImplementedError("a federation in one process returns its models")

    def model_path(self) -> Path | None:
        """None: no model is kept."""
        return None
