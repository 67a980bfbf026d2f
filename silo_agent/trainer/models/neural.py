"""A small neural network without torch, from scikit-learn; refitted each round."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from sklearn.neural_network import MLPClassifier

from silo_agent.trainer.models.parameters import estimator_parameters
from silo_agent.trainer.models.protocol import Learner, Problem
from silo_agent.trainer.models.scaling import standardised
from silo_agent.trainer.models.seen_labels import SeenLabels

# Adam's loss still falls after scikit-learn's 200 epochs when an epoch is one batch of 17 rows.
PERCEPTRON = {"hidden_layer_sizes": (100,), "max_iter": 1000}


def mlp(given: Mapping[str, object], problem: Problem) -> Learner:
    """One hidden layer of 100 on standardised features."""
    arguments = estimator_parameters("mlp", MLPClassifier, PERCEPTRON, given, problem.seed)
    return SeenLabels(partial(standardised, MLPClassifier, **arguments), problem.classes)
