"""A silo without data: what a mechanism costs is asked of it, for a proved cost depends on no private row."""

from __future__ import annotations

import numpy as np

from silo_agent.trainer.models.protocol import AnyLearner, Labelled, Labels
from silo_agent.trainer.privacy.mechanisms.protocol import SiloRound
from wire.ballot import BallotShape


class InMemoryFiles:
    """`KeptFiles` in memory."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}

    def get(self, name: str) -> bytes | None:
        """What was kept under a name, if anything was."""
        return self._contents.get(name)

    def put(self, name: str, content: bytes) -> None:
        """Keeps `content` under a name."""
        self._contents[name] = content


def silo_without_data(shape: BallotShape) -> SiloRound:
    """A `SiloRound` with no rows whose callbacks raise AssertionError: for offers that must not depend on data."""

    def never(*_: object) -> Labels:
        raise AssertionError("a proved cost depends on no private row")

    def untrained(_: int) -> AnyLearner:
        raise AssertionError("a cost is said before anything is trained")

    return SiloRound(
        private=Labelled(np.empty((0, 1)), np.empty(0, dtype=np.int64)),
        patients=np.empty(0, dtype=np.int64),
        public=np.empty((shape.rows, 1)),
        classes=shape.classes,
        round_number=1,
        relabel_without=never,
        build=untrained,
        kept=InMemoryFiles(),
    )
