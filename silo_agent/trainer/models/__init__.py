"""Learner families behind one protocol: `fit` and `predict`, in scikit-learn's words."""

from silo_agent.trainer.models.catalogue import LEARNERS, LearnerSpec, build
from silo_agent.trainer.models.protocol import IterativeLearner, Labelled, Learner

__all__ = ["LEARNERS", "IterativeLearner", "Labelled", "Learner", "LearnerSpec", "build"]
