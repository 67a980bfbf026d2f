"""Training a learner from nothing on given rows, of whichever kind it is."""

from __future__ import annotations

from typing import Final

from silo_agent.models.protocol import AnyLearner, Labelled, Learner

STEPS: Final = 200
"""Minibatch steps of a learner that continues and has no `fit` that says how many; fixed, so it reveals nothing."""


def fitted(learner: AnyLearner, rows: Labelled, seed: int) -> AnyLearner:
    """The untrained `learner` after these rows alone. One that can `fit` does; others take `STEPS` steps."""
    if isinstance(learner, Learner):
        learner.fit(rows.features, rows.labels)
    else:
        learner.advance(rows, None, STEPS, seed)
    return learner
