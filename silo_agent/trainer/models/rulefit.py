"""Sparse linear models of decision rules (RuleFit), from imodels, made multi-class one-vs-rest."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from imodels import RuleFitClassifier
from sklearn.exceptions import ConvergenceWarning

from silo_agent.trainer.models.parameters import estimator_parameters
from silo_agent.trainer.models.protocol import Features, Labels, Learner, Problem
from silo_agent.trainer.models.seen_labels import SeenLabels

# `cv` is off because imodels discards its outcome: the test that guards the choice
# (`all(scores != scores[0])`) can never hold, so it always takes the least regularisation
# that keeps to `max_rules`. Off, the result is the same and costs a third.
RULES = {"tree_size": 4, "max_rules": 200, "cv": False}


def rulefit(given: Mapping[str, object], problem: Problem) -> Learner:
    """Rules of trees with about four leaves, at most 200 of them with the linear terms."""
    arguments = estimator_parameters("rulefit", RuleFitClassifier, RULES, given, problem.seed)
    return SeenLabels(partial(OneVsRestRules, **arguments), problem.classes)


class OneVsRestRules:
    """RuleFit for k ≥ 2 contiguous labels: one binary model per class, one in all if k = 2.

    A row goes to the class whose model has the largest log-odds for it.
    """

    def __init__(self, **parameters: Any) -> None:
        self._parameters = parameters
        self._models: list[Any] = []

    def fit(self, X: Features, y: Labels, /) -> OneVsRestRules:
        """Fits the binary models, one after the other."""
        classes = int(y.max()) + 1
        positives = [1] if classes == 2 else list(range(classes))
        with _contained():
            self._models = [
                RuleFitClassifier(**self._parameters).fit(X, (y == label).astype(np.int64))
                for label in positives
            ]
        return self

    def predict(self, X: Features, /) -> Labels:
        """The label with the largest log-odds."""
        odds = [_log_odds(model, X) for model in self._models]
        if len(odds) == 1:
            odds.insert(0, -odds[0])
        labels: Labels = np.argmax(np.stack(odds, axis=1), axis=1)
        return labels


def _log_odds(model: Any, X: Features) -> npt.NDArray[np.float64]:
    # imodels reports softmax(1 - z, z) for log-odds z, as if z were a probability, and so says
    # "positive" only from z = ½ on. Solved for z, the threshold is 0 again.
    probabilities = np.maximum(model.predict_proba(X), np.finfo(np.float64).tiny)
    log_ratio: npt.NDArray[np.float64] = np.log(probabilities[:, 1]) - np.log(probabilities[:, 0])
    return (1.0 + log_ratio) / 2.0


@contextmanager
def _contained() -> Iterator[None]:
    """Keeps what imodels does to its surroundings while fitting from reaching them."""
    # It seeds numpy's global generator; a known seed must not leak into anyone else's randomness.
    before = np.random.get_state()
    try:
        with warnings.catch_warnings():
            # It walks a grid down to C = 10⁴ where liblinear stops early by design of the grid,
            warnings.simplefilter("ignore", ConvergenceWarning)
            # and asks for the L1 penalty in the words scikit-learn used before 1.8; it gets it.
            warnings.filterwarnings("ignore", "'penalty' was deprecated", FutureWarning)
            warnings.filterwarnings("ignore", "Inconsistent values: penalty=l1", UserWarning)
            yield
    finally:
        np.random.set_state(before)
