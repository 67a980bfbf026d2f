"""Accuracy against whole-run ε: one cell is one method at one budget on one split of a data set.

Nothing is tuned on the test rows, nor on any other: learner, rounds and mechanisms are as their defaults have
them, the same for every data set and ε. Mechanisms that pay per release buy one ballot (`paid_rounds: 1`),
which is the best they can do with a budget; noise-free FedCT votes anew in every round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

import numpy as np

from experiments.data import Dataset, Deal, Sizes, deal, load, pooled
from experiments.privacy.federation import Arrangement, Course, hold
from silo_agent.models.catalogue import LearnerSpec, build
from silo_agent.models.protocol import AnyLearner, Labelled
from silo_agent.privacy.settings import (
    MechanismSettings,
    NoneSettings,
    PrivateLabellerSettings,
    RandomizedResponseSettings,
    TeacherVotesSettings,
    XorSettings,
)
from silo_agent.trainer.fedct import CoTraining
from wire.ballot import ABSTAIN, Encoding


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
        return self in MECHANISMS


MECHANISMS: dict[Method, tuple[MechanismSettings, Encoding]] = {
    Method.XOR: (XorSettings(paid_rounds=1), Encoding.ONE_HOT),
    Method.RANDOMIZED_RESPONSE: (RandomizedResponseSettings(paid_rounds=1), Encoding.ONE_HOT),
    Method.TEACHER_VOTES: (TeacherVotesSettings(), Encoding.INDEX),
    Method.LABELLER: (PrivateLabellerSettings(), Encoding.INDEX),
    Method.LABELLER_SCORED: (PrivateLabellerSettings(), Encoding.SCORED),
    Method.LABELLER_EBM: (PrivateLabellerSettings(head="ebm"), Encoding.SCORED),
    Method.LABELLER_SGD: (PrivateLabellerSettings(head="sgd"), Encoding.SCORED),
}
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
        """How the data set is dealt out."""
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
        return Setting(**{name: getattr(self, name) for name in Setting.__dataclass_fields__})


@dataclass(frozen=True)
class Result:
    """Shares of rows that are right."""

    accuracy: float
    """Of the test rows, by the silos' own models: the mean over silos."""
    worst: float
    """The same for the silo that fares worst."""
    consensus: float | None
    """Of the public rows that have a consensus label; None where there is none."""
    answered: float | None
    """Share of the public rows that have one."""
    epsilon: float
    """What was spent, derived by the accountant: 0 if nothing left, ∞ without noise."""


def cells(
    setting: Setting, methods: tuple[Method, ...], budgets: tuple[float, ...], seeds: int
) -> list[Cell]:
    """Every run of a plot; seeds outermost, so that an unfinished table is balanced."""
    shared = vars(setting)
    return [
        Cell(**shared, method=method, budget=budget, seed=seed)
        for seed in range(seeds)
        for method in methods
        for budget in (budgets if method.private else (None,))
    ]


def measure(cell: Cell, folder: Path | None) -> Result:
    """Runs one cell; `folder` is where data sets lie that do not come along."""
    rows = deal(_loaded(cell.dataset, folder), cell.sizes, cell.seed)
    spec = LearnerSpec(name=cell.learner)
    match Method(cell.method):
        case Method.LOCAL:
            models = tuple(_alone(part, rows, spec, cell.seed) for part in rows.private)
            return _result(models, rows, None, 0.0)
        case Method.CENTRAL:
            model = _alone(pooled(rows.private), rows, spec, cell.seed)
            return _result((model,), rows, None, math.inf)
        case Method.FEDCT:
            mechanism: MechanismSettings = NoneSettings()
            encoding = Encoding.INDEX
        case method:
            mechanism, encoding = MECHANISMS[method]
    arrangement = Arrangement(mechanism, encoding, cell.budget, cell.delta, cell.rounds, spec)
    course = hold(rows.private, rows.public, rows.classes, arrangement, cell.seed)
    return _result(course.home, rows, course, course.epsilon)


@lru_cache(maxsize=1)
def _loaded(name: str, folder: Path | None) -> Dataset:
    return load(name, folder)


def _alone(part: Labelled, rows: Deal, spec: LearnerSpec, seed: int) -> AnyLearner:
    """The learner a silo would have without taking part."""

    def made(number: int) -> AnyLearner:
        return build(spec, rows.classes, tuple(rows.public.shape[1:]), number)

    return CoTraining(part, rows.public, made, _STEPS_ALONE, seed).fit(1, None, None)


_STEPS_ALONE = 300
"""Steps of a learner that continues: as many as five rounds and the end of a federation have."""


def _result(
    models: tuple[AnyLearner, ...], rows: Deal, course: Course | None, epsilon: float
) -> Result:
    right = [
        float(np.mean(np.asarray(model.predict(rows.test.features)) == rows.test.labels))
        for model in models
    ]
    consensus = answered = None
    if course is not None:
        said = course.consensus != ABSTAIN
        answered = float(said.mean())
        if said.any():
            consensus = float(np.mean(course.consensus[said] == rows.hidden[said]))
    return Result(float(np.mean(right)), min(right), consensus, answered, epsilon)
