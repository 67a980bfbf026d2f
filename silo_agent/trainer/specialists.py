"""Learners of a silo that knows only some of a task's classes: they are built for those and answer with the task's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from silo_agent.models.protocol import (
    AnyLearner,
    Features,
    IterativeLearner,
    Labelled,
    Labels,
    Learner,
)


def specialised(
    build: Callable[[int, int], AnyLearner], known: tuple[int, ...], classes: int
) -> Callable[[int], AnyLearner]:
    """A builder for seeds; `build` takes a number of classes and a seed."""
    if len(known) == classes:
        return lambda seed: build(classes, seed)
    return lambda seed: _wrapped(build(len(known), seed), known)


def _wrapped(learner: AnyLearner, known: tuple[int, ...]) -> AnyLearner:
    if isinstance(learner, IterativeLearner):
        return IterativeSpecialist(learner, known)
    return Specialist(learner, known)


class Specialist:
    """A learner fitted anew whose classes 0 … k−1 are those of `known`."""

    def __init__(self, learner: Learner, known: tuple[int, ...]) -> None:
        self._learner = learner
        self._known = np.asarray(known, dtype=np.int64)

    def fit(self, X: Features, y: Labels, /) -> Specialist:
        """Learns from rows whose labels are all known."""
        self._learner.fit(X, _own(y, self._known))
        return self

    def predict(self, X: Features, /) -> Labels:
        """One of the task's class indices per row."""
        labels: Labels = self._known[np.asarray(self._learner.predict(X), dtype=np.int64)]
        return labels


class IterativeSpecialist:
    """The same for a learner that continues."""

    def __init__(self, learner: IterativeLearner, known: tuple[int, ...]) -> None:
        self._learner = learner
        self._known = np.asarray(known, dtype=np.int64)

    def advance(self, private: Labelled, pseudo: Labelled | None, steps: int, seed: int) -> None:
        """Takes `steps` minibatch steps on rows whose labels are all known."""
        own, others = (
            None if rows is None else Labelled(rows.features, _own(rows.labels, self._known))
            for rows in (private, pseudo)
        )
        if own is not None:
            self._learner.advance(own, others, steps, seed)

    def predict(self, X: Features, /) -> Labels:
        """One of the task's class indices per row."""
        labels: Labels = self._known[np.asarray(self._learner.predict(X), dtype=np.int64)]
        return labels


def _own(labels: Labels, known: Labels) -> Labels:
    """The task's class indices as positions in `known`, which is sorted."""
    if not np.isin(labels, known).all():
        raise ValueError("a row has a class this silo does not know")
    own: Labels = np.searchsorted(known, labels).astype(np.int64)
    return own
