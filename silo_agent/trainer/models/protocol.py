"""What every learner promises: `fit` and `predict`, or `advance` and `predict` if it continues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from wire.extractor_file import ExtractorFile

Features: TypeAlias = npt.NDArray[Any]
"""Rows as a learner reads them: numbers (n, d), images (n, H, W) or (n, H, W, channels), texts (n,) of str objects."""

Reads: TypeAlias = Literal["features", "texts"]
"""What a learner wants rows to be: numbers, or the texts themselves."""

Labels: TypeAlias = npt.NDArray[np.int64]
"""Class indices in 0..C-1, shape (n,)."""


@dataclass(frozen=True, eq=False)
class Labelled:
    """Rows and their class indices; as many labels as rows."""

    features: Features
    labels: Labels

    def __post_init__(self) -> None:
        if len(self.features) != len(self.labels):
            raise ValueError(f"{len(self.features)} rows have {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: npt.NDArray[Any]) -> Labelled:
        """The rows of a mask or of indices."""
        return Labelled(self.features[rows], self.labels[rows])


@dataclass(frozen=True)
class Problem:
    """What a learner is built for: C classes, rows of one shape (without n; () for texts), and its seed."""

    classes: int
    row_shape: tuple[int, ...]
    seed: int
    extractor: ExtractorFile | None = None
    """The task's; networks may start from its weights."""


@runtime_checkable
class Learner(Protocol):
    """Fitted anew each time; scikit-learn's words, so any of its classifiers is one unwrapped."""

    def fit(self, X: Features, y: Labels, /) -> Any:
        """Learns from these rows alone; what an earlier `fit` learned is forgotten."""

    def predict(self, X: Features, /) -> Labels:
        """One class index per row."""


@runtime_checkable
class IterativeLearner(Protocol):
    """Continues from its last state; its pickle carries that state, optimiser included."""

    def advance(self, private: Labelled, pseudo: Labelled | None, steps: int, seed: int) -> None:
        """Takes exactly `steps` minibatch steps on D and, once there is one, the pseudo-labelled P.

        `seed` alone decides which rows are drawn.
        """

    def predict(self, X: Features, /) -> Labels:
        """One class index per row."""


AnyLearner: TypeAlias = Learner | IterativeLearner


def reads_of(learner: object) -> Reads:
    """What a learner, or its class, reads: its attribute `reads`; numbers if it has none."""
    return "texts" if getattr(learner, "reads", "features") == "texts" else "features"
