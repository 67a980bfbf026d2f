"""Four real hospitals, each with patients and a learner of its own: alone, together, and as if pooled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.data import Split, pooled
from experiments.data.hearts import HOSPITALS, HospitalData, labelled, load_hospitals, medians
from experiments.federation import Silo, define_task, run_federation
from experiments.papers.cotraining import silo_seed
from experiments.papers.experiment import Experiment, Line, Timed, by_seed
from experiments.papers.plots import dots
from experiments.scores import Predictor, accuracy, train_alone
from silo_agent.trainer.models.catalogue import LearnerSpec
from silo_agent.trainer.models.protocol import Labelled
from silo_agent.trainer.privacy.settings import PrivacySettings, PrivateLabellerSettings
from silo_agent.trainer.settings import TrainingSettings

LEARNERS = {
    "cleveland": "random_forest",
    "hungarian": "xgboost",
    "switzerland": "logistic_regression",
    "va": "svm",
}
POOLED = "random_forest"
SPLITS, ROUNDS = 10, 5
PUBLIC, TEST = 0.25, 0.25
"""Shares of every hospital's patients; the others are its private ones."""
EPSILON, DELTA = 4.0, 1e-5


class Method(StrEnum):
    """Who trains."""

    ALONE = "alone"
    TOGETHER = "together"
    PRIVATE = "private"
    POOLED = "pooled"


TITLES = {
    Method.ALONE: "each alone",
    Method.TOGETHER: "Consilium",
    Method.PRIVATE: "Consilium, ε = 4",
    Method.POOLED: "pooled",
}


@dataclass(frozen=True)
class Cell:
    """One method on one way to split each hospital's patients."""

    method: str
    split: int
    rounds: int
    seed: int


@dataclass(frozen=True)
class Result(Timed):
    """Accuracies of the four hospitals' models, on the test patients of their own hospital and of all four."""

    own: float
    """The mean over hospitals."""
    everyone: float
    """The mean over hospitals' models, of a mean over the hospitals whose patients they are tried on."""
    cleveland_own: float
    hungarian_own: float
    switzerland_own: float
    va_own: float
    cleveland_everyone: float
    hungarian_everyone: float
    switzerland_everyone: float
    va_everyone: float
    epsilon: float | None
    """Most that a hospital's ledger has for the whole task."""


def cells(seeds: int, quick: bool) -> list[Cell]:
    """The sets are small, so every seed splits them many times."""
    return [
        Cell(method, split, 2 if quick else ROUNDS, seed)
        for seed in range(1 if quick else seeds)
        for split in range(1 if quick else SPLITS)
        for method in Method
    ]


@dataclass(frozen=True, eq=False)
class HospitalSplit:
    """One split."""

    rows: Split
    tests: Mapping[str, Labelled]


def measure(cell: Cell, folder: Path | None) -> Result:
    """One run."""
    seed = SPLITS * cell.seed + cell.split
    drawn = split(_hospitals(folder), seed)
    rows = drawn.rows
    models: Mapping[str, Predictor]
    spent = None
    match Method(cell.method):
        case Method.ALONE:
            models = {
                name: train_alone(
                    rows, part, LearnerSpec(name=LEARNERS[name]), silo_seed(seed, index)
                )
                for index, (name, part) in enumerate(zip(HOSPITALS, rows.private, strict=True))
            }
        case Method.POOLED:
            one = train_alone(rows, pooled(rows.private), LearnerSpec(name=POOLED), seed)
            models = dict.fromkeys(HOSPITALS, one)
        case Method.TOGETHER:
            models, _ = run_together(rows, cell.rounds, seed, PrivacySettings())
        case Method.PRIVATE:
            mechanism = PrivateLabellerSettings()
            privacy = PrivacySettings(mechanism=mechanism, epsilon=EPSILON, delta=DELTA)
            models, spent = run_together(rows, cell.rounds, seed, privacy)
    return scored(models, drawn.tests, spent)


def split(patients: Mapping[str, HospitalData], seed: int) -> HospitalSplit:
    """Of every hospital a quarter is public, without labels, a quarter is for the test, and half is private."""
    draw = np.random.default_rng(seed)
    parts = {}
    for name, ward in patients.items():
        order = draw.permutation(len(ward.labels))
        ends = [round(PUBLIC * len(order)), round((PUBLIC + TEST) * len(order))]
        parts[name] = np.split(order, ends)
    middle = medians(np.concatenate([patients[name].rows[parts[name][0]] for name in patients]))
    public = [labelled(patients[name], parts[name][0], middle) for name in patients]
    tests = {name: labelled(patients[name], parts[name][1], middle) for name in patients}
    private = tuple(labelled(patients[name], parts[name][2], middle) for name in patients)
    held = pooled(tuple(public))
    return HospitalSplit(
        Split(private, held.features, held.labels, pooled(tuple(tests.values())), 2), tests
    )


def run_together(
    rows: Split, rounds: int, seed: int, privacy: PrivacySettings
) -> tuple[Mapping[str, Predictor], float]:
    """The models at home after a FedCT task, and the most ε a hospital spent.

    How much of the consensus each takes home it decides by its own patients, as silo.yaml's default is.
    """
    silos = {
        name: Silo(
            part,
            TrainingSettings(
                model=LearnerSpec(name=LEARNERS[name]),
                seed=silo_seed(seed, index),
                privacy=privacy,
            ),
        )
        for index, (name, part) in enumerate(zip(HOSPITALS, rows.private, strict=True))
    }
    settings: dict[str, Any] = {"rounds": {"max_rounds": rounds}}
    definition = define_task(rows.public, ["healthy", "diseased"], list(HOSPITALS), **settings)
    result = run_federation(definition, silos, rows.public)
    return result.home_models, max(result.spent.values())


def scored(
    models: Mapping[str, Predictor], tests: Mapping[str, Labelled], spent: float | None
) -> Result:
    """Every model on every hospital's test patients."""
    right = {
        name: {other: accuracy(model, test) for other, test in tests.items()}
        for name, model in models.items()
    }
    own = {f"{name}_own": right[name][name] for name in models}
    everyone = {f"{name}_everyone": float(np.mean(list(right[name].values()))) for name in models}
    return Result(
        own=float(np.mean(list(own.values()))),
        everyone=float(np.mean(list(everyone.values()))),
        epsilon=spent,
        **own,
        **everyone,
    )


@lru_cache(maxsize=1)
def _hospitals(folder: Path | None) -> dict[str, HospitalData]:
    return load_hospitals(folder)


def lines(results: Mapping[Cell, Result]) -> Sequence[Line]:
    """Consilium against each hospital alone, on the same splits."""
    whose = {"own": "own patients", "everyone": "patients of all four"}
    found = []
    for kind, patients in whose.items():
        names = {kind: f"Mean, {patients}"}
        names |= {f"{name}_{kind}": f"{title}, {patients}" for name, title in HOSPITALS.items()}
        for field, where in names.items():
            for method in Method:
                ours = _by_seed(results, method, field)
                alone_too = _by_seed(results, Method.ALONE, field)
                judged = method is Method.TOGETHER and field == kind and alone_too
                found.append(
                    Line(
                        (where, TITLES[method]),
                        ours,
                        least=float(np.mean(alone_too)) - _LOSS[kind] if judged else None,
                        beside={"ε": _by_seed(results, method, "epsilon")},
                        why=WHY,
                    )
                )
    return found


def _by_seed(results: Mapping[Cell, Result], method: Method, field: str) -> tuple[float, ...]:
    """The mean over a seed's splits, for every seed."""

    def value(one: Result) -> float | None:
        found: float | None = getattr(one, field)
        return None if found is None or not np.isfinite(found) else found

    def of(cell: Cell, seed: int) -> bool:
        return (cell.method, cell.seed) == (method, seed)

    seeds = sorted({cell.seed for cell in results})
    values = [by_seed(results, partial(of, seed=seed), value) for seed in seeds]
    return tuple(float(np.mean(one)) for one in values if one)


_LOSS = {"own": 0.01, "everyone": 0.0}
WHY = (
    "Patients differ from hospital to hospital (36 % to 93 % are diseased): what the others know helps with their patients "
    "more than with one's own."
)
EXPERIMENT = Experiment(
    name="hearts",
    title="Four real hospitals: UCI heart disease",
    paper="No table of a paper: Janosi, Steinbrunn, Pfisterer, Detrano, *Heart Disease*, UCI, with the hospitals as they are, as in FLamby (NeurIPS 2022).",
    success="On the patients of all four hospitals Consilium's models are better than each hospital's alone; on a hospital's own they are at most 0.01 worse on average.",
    about="""
Cleveland (303 patients), Budapest (294), Zurich and Basel (123), Long Beach (200): whether the coronary arteries are diseased, from ten columns. `slope`, `ca` and `thal` are left out, which three of the hospitals
hardly measured; a cholesterol or blood pressure of zero is an empty cell. Empty cells take the public rows' median, and a column says so, as the product encodes tables.
Half of a hospital's patients are private, a quarter is for the test, and a quarter, without labels, is public: **U is 230 patients of all four hospitals** who agreed to it, so to say.
Ten splits per seed.

Every hospital has another learner, with the product's defaults: random forest, XGBoost, logistic regression, SVM. FedCT, five rounds; how much of the consensus a hospital's model takes home is decided by
cross-validation at home, as is the default. **ε = 4** is the private labeller with that budget for the whole task and a patient, δ = 1e-5, at every hospital; ε is from the ledger. **Pooled** is a random
forest of all private patients, which nobody may have. Accuracies on the patients of all four are means over hospitals, so that a large hospital counts no more than a small one.
Nothing was tuned.
""",
    columns=("tried on", "who"),
    cell=Cell,
    result=Result,
    cells=cells,
    measure=measure,
    lines=lines,
    figure=dots,
    datasets=("heart-disease",),
)
