"""Gradient-boosted trees from XGBoost, on the GPU when there is one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial

import xgboost

from silo_agent.trainer.models.gpu import cuda_devices
from silo_agent.trainer.models.parameters import estimator_parameters
from silo_agent.trainer.models.protocol import Learner, Problem
from silo_agent.trainer.models.seen_labels import SeenLabels

BOOSTER = {"n_estimators": 100, "n_jobs": 1}


def xgboost_(given: Mapping[str, object], problem: Problem) -> Learner:
    """XGBoost's own defaults, on one thread or one GPU."""
    defaults = {**BOOSTER, "device": "cuda" if cuda_present() else "cpu"}
    arguments = estimator_parameters(
        "xgboost", xgboost.XGBClassifier, defaults, given, problem.seed
    )
    return SeenLabels(partial(xgboost.XGBClassifier, **arguments), problem.classes)


@cache
def cuda_present() -> bool:
    """True if this XGBoost was built for CUDA and the driver reports a device."""
    return bool(xgboost.build_info().get("USE_CUDA")) and cuda_devices() > 0
