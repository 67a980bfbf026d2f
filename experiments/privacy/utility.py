"""Accuracy against whole-run ε: one cell is one method at one budget on one split of a data set.

Nothing is tuned on the test rows, nor on any other: learner, rounds and mechanisms are as their defaults have
them, the same for every data set and ε. Mechanisms that pay per release buy one ballot (`paid_rounds: 1`),
which is the best they can do with a budget; noise-free FedCT votes anew in every round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path

from experiments.data import Sizes, Split, load_once, pooled, split_dataset
from experiments.federation import silo_names
from experiments.privacy.private_task import PrivateTask
from experiments.privacy.runs import runs
from experiments.scores import Predictor, Scores, score, train_alone
from silo_agent.trainer.models.catalogue import LearnerSpec
from silo_agent.trainer.models.protocol import Labels
from silo_agent.trainer.privacy.settings import (
    MechanismSettings,
    NoneSettings,
    PrivateLabellerSettings,
    RandomizedResponseSettings,
    TeacherVotesSettings,
    XorSettings,
)
from wire.ballot import Encoding


class Method(StrEnum):
    """The lines of the plot."""

    LOCAL = "local"
    CENTRAL = "central"
    FEDCT = "fedct"
    XOR = "xor"
    RANDOMIZED_RESPONSE = "randomized_response"
    TEACHER_VOTES = "teacher_votes"
    LABELLER = "private_labeller"
    LABELLER_SCORED = "private_labeller_scored"
    LABELLER_EBM = "private_labeller_ebm"
    LABELLER_SGD = "private_labeller_sgd"

    @property
    def private(self) -> bool:
        """Whether it has an ε."""
        return self not in (Method.LOCAL, Method.CENTRAL, Method.FEDCT)


BALLOTS: dict[Method, tuple[MechanismSettings, Encoding]] = {
    Method.FEDCT: (NoneSettings(), Encoding.INDEX),
    Method.XOR: (XorSettings(paid_rounds=1), Encoding.ONE_HOT),
    Method.RANDOMIZED_RESPONSE: (RandomizedResponseSettings(paid_rounds=1), Encoding.ONE_HOT),
    Method.TEACHER_VOTES: (TeacherVotesSettings(), Encoding.INDEX),
    Method.LABELLER: (PrivateLabellerSettings(), Encoding.INDEX),
    Method.LABELLER_SCORED: (PrivateLabellerSettings(), Encoding.SCORED),
    Method.LABELLER_EBM: (PrivateLabellerSettings(head="ebm"), Encoding.SCORED),
    Method.LABELLER_SGD: (PrivateLabellerSettings(head="sgd"), Encoding.SCORED),
}
"""How the silos of a federated method make their ballots."""
DEFAULT_METHODS = tuple(
    method for method in Method if method not in (Method.LABELLER_EBM, Method.LABELLER_SGD)
)

TITLES = {
    Method.LOCAL: "local only",
    Method.CENTRAL: "centralised",
    Method.FEDCT: "FedCT, no noise",
    Method.XOR: "xor, worst case",
    Method.RANDOMIZED_RESPONSE: "randomised response",
    Method.TEACHER_VOTES: "teacher votes",
    Method.LABELLER: "private labeller",
    Method.LABELLER_SCORED: "private labeller, scored votes",
    Method.LABELLER_EBM: "private labeller (EBM), scored",
    Method.LABELLER_SGD: "private labeller (SGD), scored",
}
"""The methods as a person reads them."""


@dataclass(frozen=True)
class Setting:
    """What the methods of one plot have in common."""

    dataset: str
    silos: int
    rows_per_silo: int
    public_rows: int
    test_rows: int
    alpha: float | None
    learner: str
    rounds: int
    delta: float

    @property
    def sizes(self) -> Sizes:
        """How the data set is split."""
        return Sizes(self.silos, self.rows_per_silo, self.public_rows, self.test_rows, self.alpha)


@dataclass(frozen=True)
class Cell(Setting):
    """One run. `budget` is the ε it may spend; None for methods that have none."""

    method: str
    budget: float | None
    seed: int

    @property
    def setting(self) -> Setting:
        """The plot it belongs to."""
        return Setting(**{one.name: getattr(self, one.name) for one in fields(Setting)})


@dataclass(frozen=True)
class Result(Scores):
    """Shares of rows that are right, and what that cost."""

    epsilon: float
    """What was spent, derived by the accountant: 0 if nothing left, ∞ without noise."""


def cells(
    setting: Setting, methods: tuple[Method, ...], budgets: tuple[float, ...], seeds: int
) -> list[Cell]:
    """Every run of a plot."""
    return [Cell(**vars(setting), **run) for run in runs("method", methods, budgets, seeds)]


def measure(cell: Cell, folder: Path | None) -> Result:
    """Runs one cell; `folder` holds the data sets that scikit-learn does not have."""
    rows = split_dataset(load_once(cell.dataset, folder), cell.sizes, cell.seed)
    learner = LearnerSpec(name=cell.learner)
    method = Method(cell.method)
    match method:
        case Method.LOCAL:
            models = [
                train_alone(rows, part, learner, cell.seed, _STEPS_ALONE) for part in rows.private
            ]
            return _result(models, rows, None, 0.0)
        case Method.CENTRAL:
            model = train_alone(rows, pooled(rows.private), learner, cell.seed, _STEPS_ALONE)
            return _result([model], rows, None, math.inf)
        case (
            Method.FEDCT
            | Method.XOR
            | Method.RANDOMIZED_RESPONSE
            | Method.TEACHER_VOTES
            | Method.LABELLER
            | Method.LABELLER_SCORED
            | Method.LABELLER_EBM
            | Method.LABELLER_SGD
        ):
            return _federated(cell, rows, learner, *BALLOTS[method])


def _federated(
    cell: Cell,
    rows: Split,
    learner: LearnerSpec,
    mechanism: MechanismSettings,
    encoding: Encoding,
) -> Result:
    """The silos' models after a task; an absent silo has the model that it trains alone."""
    task = PrivateTask(mechanism, encoding, cell.budget, cell.delta, cell.rounds, learner)
    result = task.run(rows.private, rows.public, rows.classes, cell.seed)
    models = [
        train_alone(rows, part, learner, cell.seed, _STEPS_ALONE)
        if name in result.absent
        else result.home_models[name]
        for name, part in zip(silo_names(cell.silos), rows.private, strict=True)
    ]
    return _result(models, rows, result.labels(), max(result.spent.values(), default=0.0))


_STEPS_ALONE = 300
"""Steps of an iterative learner: as many as it takes in five rounds of a federation and after them."""


def _result(
    models: Sequence[Predictor], rows: Split, consensus: Labels | None, epsilon: float
) -> Result:
    return Result(**vars(score(models, rows, consensus)), epsilon=epsilon)
