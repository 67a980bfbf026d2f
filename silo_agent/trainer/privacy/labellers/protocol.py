"""What a head of the private labeller promises: its cost is known before it is trained on anything."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from silo_agent.trainer.models.protocol import Features, Labelled
from wire.privacy.events import Event
from wire.privacy.randomness import Bits

Probabilities = npt.NDArray[np.floating[Any]]


class Head(Protocol):
    """A trained head; as private as its events say, so anything may be computed from it. Picklable."""

    def probabilities(self, rows: Features, /) -> Probabilities:
        """(n, classes), each row adding up to 1."""
        ...


class HeadTrainer(Protocol):
    """How a head is trained, with the noise already chosen for a budget."""

    @property
    def events(self) -> tuple[Event, ...]:
        """What training costs one unit of privacy; depends on no private row."""
        ...

    @property
    def parameters(self) -> dict[str, object]:
        """The noise and what else an officer may want to see in the ledger; JSON values."""
        ...

    def train(
        self,
        private: Labelled,
        patients: npt.NDArray[np.int64],
        public: Features,
        classes: int,
        bits: Bits,
    ) -> Head:
        """Trains once. `patients` (n,) says whose row it is: the guarantee is per number in it."""
        ...
