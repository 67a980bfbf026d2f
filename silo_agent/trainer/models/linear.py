"""Linear and kernel margins on standardised features, from scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC

from silo_agent.trainer.models.parameters import estimator_parameters
from silo_agent.trainer.models.protocol import Learner, Problem
from silo_agent.trainer.models.scaling import standardised
from silo_agent.trainer.models.seen_labels import SeenLabels

LOGISTIC = {"C": 1.0, "max_iter": 1000}
SUPPORT_VECTORS = {"C": 1.0, "kernel": "rbf", "gamma": "scale"}


def logistic_regression(given: Mapping[str, object], problem: Problem) -> Learner:
    """Multinomial, L2-regularised."""
    arguments = estimator_parameters(
        "logistic_regression", LogisticRegression, LOGISTIC, given, problem.seed
    )
    return SeenLabels(partial(standardised, LogisticRegression, **arguments), problem.classes)


def svm(given: Mapping[str, object], problem: Problem) -> Learner:
    """Radial kernel, one-vs-one for more than two classes."""
    arguments = estimator_parameters("svm", SVC, SUPPORT_VECTORS, given, problem.seed)
    return SeenLabels(partial(standardised, SVC, **arguments), problem.classes)
