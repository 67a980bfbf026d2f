"""A silo without data: what a mechanism costs is asked of it, for a proved cost depends on no private row."""

from __future__ import annotations

import numpy as np

from silo_agent.models.protocol import AnyLearner, Labelled, Labels
from silo_agent.privacy.mechanisms.protocol import PrivateSide
from wire.ballot import BallotShape


class Memory:
    """Keepsakes that last as long as they are held."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}

    def get(self, name: str) -> bytes | None:
        """What was kept under a name, if anything was."""
        return self._contents.get(name)

    def put(self, name: str, content: bytes) -> None:
        """Keeps `content` under a name."""
        self._contents[name] = content


def nobody(shape: BallotShape) -> PrivateSide:
    """Whoever looks at the data to say what a ballot costs fails here."""

    def never(*_: object) -> Labels:
        raise AssertionError("a proved cost depends on no private row")

    def untrained(_: int) -> AnyLearner:
        raise AssertionError("a cost is said before anything is trained")

    return PrivateSide(
        private=Labelled(np.empty((0, 1)), np.empty(0, dtype=np.int64)),
        patients=np.empty(0, dtype=np.int64),
        public=np.empty((shape.rows, 1)),
        classes=shape.classes,
        number=1,
        predict=never,
        predict_without=never,
        build=untrained,
        kept=Memory(),
    )
