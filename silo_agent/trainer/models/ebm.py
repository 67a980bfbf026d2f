"""Explainable boosting machines (generalised additive models), from interpret."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod

from interpret.glassbox import ExplainableBoostingClassifier

from silo_agent.trainer.models.parameters import estimator_parameters
from silo_agent.trainer.models.protocol import Learner, Problem
from silo_agent.trainer.models.seen_labels import SeenLabels

# A refit every round must take about a second: four bags instead of 14, no pairwise terms.
ADDITIVE = {"outer_bags": 4, "interactions": 0, "max_rounds": 1000, "n_jobs": 1}


def ebm(given: Mapping[str, object], problem: Problem) -> Learner:
    """One shape function per feature, averaged over a few bags."""
    # Features arrive encoded; left to guess, interpret takes a column with few values for names
    # and then cannot place a value that occurs only in the public set.
    defaults = {**ADDITIVE, "feature_types": ["continuous"] * prod(problem.row_shape)}
    arguments = estimator_parameters(
        "ebm", ExplainableBoostingClassifier, defaults, given, problem.seed
    )
    return SeenLabels(partial(ExplainableBoostingClassifier, **arguments), problem.classes)
