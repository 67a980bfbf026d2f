"""Training a new learner on given rows, whether it has `fit` or `advance`."""

from __future__ import annotations

from typing import Final

from silo_agent.trainer.models.protocol import AnyLearner, Labelled, Learner

STEPS: Final = 200
"""Minibatch steps of a learner that continues and has no `fit` that says how many; fixed, so it reveals nothing."""


def fit_from_scratch(learner: AnyLearner, rows: Labelled, seed: int) -> AnyLearner:
    """Trains the untrained `learner` on these rows alone and returns it: by `fit`, or by `STEPS` steps of `advance`."""
    if isinstance(learner, Learner):
        learner.fit(rows.features, rows.labels)
    else:
        learner.advance(rows, None, STEPS, seed)
    return learner
