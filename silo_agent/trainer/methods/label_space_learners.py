"""Learners of a silo that knows only some of a task's classes: they are built for those and answer with the task's.

Rows of other classes teach them nothing. The silo's own rows have none, which is checked before anything is
trained; a consensus should not bring any, but what comes from outside is not trusted to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from silo_agent.trainer.models.protocol import (
    AnyLearner,
    Features,
    IterativeLearner,
    Labelled,
    Labels,
    Learner,
    reads_of,
)


def restricted_to(
    known: tuple[int, ...], build: Callable[[int, int], AnyLearner], classes: int
) -> Callable[[int], AnyLearner]:
    """A builder by seed; `build` takes a number of classes and a seed, `known` is in ascending order."""
    if len(known) == classes:
        return lambda seed: build(classes, seed)
    return lambda seed: _wrapped(build(len(known), seed), known)


def _wrapped(learner: AnyLearner, known: tuple[int, ...]) -> AnyLearner:
    if not isinstance(learner, IterativeLearner):
        return LabelSpaceLearner(learner, known)
    # One that can also start anew keeps doing so by its own number of steps.
    return (
        NetworkLabelSpaceLearner if isinstance(learner, Learner) else IterativeLabelSpaceLearner
    )(learner, known)


class _LabelSpaceMapping:
    """Maps between the task's class indices and positions in `known`."""

    def __init__(self, learner: AnyLearner, known: tuple[int, ...]) -> None:
        self.reads = reads_of(learner)
        self._learner: Any = learner
        self._known = np.asarray(known, dtype=np.int64)

    def predict(self, X: Features, /) -> Labels:
        """One of the task's class indices per row, always a known one."""
        labels: Labels = self._known[np.asarray(self._learner.predict(X), dtype=np.int64)]
        return labels

    def _own(self, rows: Labelled) -> Labelled:
        """The rows of known classes, labelled by position in `known`."""
        own = rows[np.isin(rows.labels, self._known)]
        return Labelled(own.features, np.searchsorted(self._known, own.labels).astype(np.int64))


class LabelSpaceLearner(_LabelSpaceMapping):
    """Wraps a learner with `fit` whose classes 0 … k−1 are those of `known`."""

    def fit(self, X: Features, y: Labels, /) -> LabelSpaceLearner:
        """Learns from the rows whose class is known."""
        own = self._own(Labelled(X, y))
        self._learner.fit(own.features, own.labels)
        return self


class IterativeLabelSpaceLearner(_LabelSpaceMapping):
    """Wraps a learner with `advance`."""

    def advance(self, private: Labelled, pseudo: Labelled | None, steps: int, seed: int) -> None:
        """Takes `steps` minibatch steps on the rows whose class is known."""
        others = None if pseudo is None else self._own(pseudo)
        self._learner.advance(self._own(private), others or None, steps, seed)


class NetworkLabelSpaceLearner(IterativeLabelSpaceLearner, LabelSpaceLearner):
    """Wraps a learner with both `fit` and `advance`."""
