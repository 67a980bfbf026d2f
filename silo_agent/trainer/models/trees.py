"""Trees and forests, from scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from sklearn.ensemble import RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier

from silo_agent.trainer.models.parameters import estimator_parameters
from silo_agent.trainer.models.protocol import Learner, Problem
from silo_agent.trainer.models.seen_labels import SeenLabels

TREE = {"criterion": "gini", "min_samples_split": 2}
FOREST = {"n_estimators": 100, "n_jobs": 1}


def decision_tree(given: Mapping[str, object], problem: Problem) -> Learner:
    """One tree, grown until its leaves are pure."""
    arguments = estimator_parameters(
        "decision_tree", DecisionTreeClassifier, TREE, given, problem.seed
    )
    return SeenLabels(partial(DecisionTreeClassifier, **arguments), problem.classes)


def random_forest(given: Mapping[str, object], problem: Problem) -> Learner:
    """A hundred trees on bootstrap samples."""
    arguments = estimator_parameters(
        "random_forest", RandomForestClassifier, FOREST, given, problem.seed
    )
    return SeenLabels(partial(RandomForestClassifier, **arguments), problem.classes)
