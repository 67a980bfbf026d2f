"""FedCT with the papers' perceptron, and the methods it is measured against: same network, same steps.

FedAvg sends weights and DD sends probabilities: they are measured here and deployed nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from experiments.data import Split
from experiments.federation import public_set_digest
from experiments.papers.cotraining import (
    TimedScores,
    central,
    cotrained,
    federated,
    local,
    silo_seed,
    timed_scores,
)
from experiments.privacy.baselines import TrainingPlan, averaged_weights, shared_probabilities
from experiments.scores import train_alone
from silo_agent.trainer.models.catalogue import LearnerSpec
from silo_agent.trainer.models.protocol import Labelled
from silo_agent.trainer.models.torch_nets import PerceptronSettings
from silo_agent.trainer.pretraining.pretraining import train as pretrained
from silo_agent.trainer.privacy.settings import CertaintySettings, PrivacySettings
from wire.extractor_file import ExtractorKind

NETWORK = PerceptronSettings(standardise=False)
"""d-512-512-C on grey values as they are, Adam 1e-3, minibatches of 64 rows of D and 64 of P."""
LEARNER = LearnerSpec(name="torch_mlp", parameters={"standardise": NETWORK.standardise})


class Method(StrEnum):
    """Who trains, and what is sent."""

    LOCAL = "local"
    FEDCT = "fedct"
    FEDCT_QM = "fedct_qm"
    FEDCT_STAPLE = "fedct_staple"
    FEDAUX = "fedaux"
    FEDAVG = "fedavg"
    DD = "dd"
    PATE = "pate"
    CENTRAL = "central"


TITLES = {
    Method.LOCAL: "local only",
    Method.FEDCT: "FedCT",
    Method.FEDCT_QM: "FedCT (QM)",
    Method.FEDCT_STAPLE: "FedCT (STAPLE)",
    Method.FEDAUX: "FEDAUX (ε = 1)",
    Method.FEDAVG: "FedAvg",
    Method.DD: "DD",
    Method.PATE: "PATE",
    Method.CENTRAL: "centralised",
}
RULES: dict[Method, dict[str, Any]] = {
    Method.FEDCT: {"rule": "majority"},
    Method.FEDCT_QM: {"rule": "qualified_majority", "min_share": 0.9},
    Method.FEDCT_STAPLE: {"rule": "staple"},
}
"""How FedCT's ballots become a consensus; the share is the paper's."""


@dataclass(frozen=True)
class Steps:
    """T minibatch steps in all, b between two messages."""

    total: int
    period: int

    @property
    def task(self) -> dict[str, Any]:
        """For a task: the last b steps are those of the model at home, after the last consensus."""
        rounds = self.total // self.period - 1
        return {"rounds": {"max_rounds": rounds}, "local_steps": self.period}

    @property
    def plan(self) -> TrainingPlan:
        """The same for FedAvg and DD."""
        return TrainingPlan(
            hidden=NETWORK.hidden,
            rounds=self.total // self.period,
            steps=self.period,
            batch=NETWORK.private_batch,
            learning_rate=NETWORK.learning_rate,
            standardise=NETWORK.standardise,
        )


def train(method: Method, rows: Split, steps: Steps, seed: int) -> TimedScores:
    """What the silos' models, or the one model of all, are worth after T steps each."""
    learners = [LEARNER] * len(rows.private)
    match method:
        case Method.LOCAL:
            return local(rows, learners, seed, steps.total)
        case Method.CENTRAL:
            return central(rows, LEARNER, seed, steps.total)
        case Method.FEDCT | Method.FEDCT_QM | Method.FEDCT_STAPLE:
            return federated(rows, learners, seed, consensus=RULES[method], **steps.task)
        case Method.FEDAUX:
            return _certainty_weighted(rows, seed, steps)
        case Method.FEDAVG:
            sent = averaged_weights(rows.private, rows.public, rows.classes, steps.plan, seed)
            return timed_scores(sent.final, rows)
        case Method.DD:
            shared = shared_probabilities(rows.private, rows.public, rows.classes, steps.plan, seed)
            return timed_scores(shared.final, rows)
        case Method.PATE:
            return _student(rows, seed, steps.total)


def _certainty_weighted(rows: Split, seed: int, steps: Steps) -> TimedScores:
    """FedCT's rounds with votes that count by how well a silo knows such rows."""
    return federated(
        rows,
        [LEARNER] * len(rows.private),
        seed,
        privacy=PrivacySettings(certainty=CertaintySettings(epsilon=1.0)),
        extractor=pretrained(
            rows.public, ExtractorKind.PCA, public_set=public_set_digest(rows.public)
        ),
        method="fedaux",
        **steps.task,
    )


def _student(rows: Split, seed: int, steps: int) -> TimedScores:
    """PATE without noise: teachers trained to the end vote once, and a student learns from (U, votes) alone."""
    result = cotrained(
        rows,
        [LEARNER] * len(rows.private),
        seed,
        home_models=False,
        rounds={"max_rounds": 1},
        local_steps=steps,
    )
    labels = result.labels()
    taught = Labelled(rows.public, labels)
    return timed_scores(
        [train_alone(rows, taught, LEARNER, silo_seed(seed, 0), steps)], rows, labels
    )
