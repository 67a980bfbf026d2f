"""Standardisation inside a learner, fitted on exactly the rows the learner is fitted on."""

from __future__ import annotations

from typing import Any

from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler


def standardised(estimator: Any, **parameters: object) -> Any:
    """A pipeline of zero mean, unit variance and `estimator(**parameters)`."""
    return make_pipeline(StandardScaler(), estimator(**parameters))
