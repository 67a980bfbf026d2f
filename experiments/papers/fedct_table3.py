"""FedCT, Table 3: learners that no average of weights can train, on five tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from experiments.data import Sizes, load_once, split_dataset
from experiments.papers.cotraining import TimedScores, central, federated, local
from experiments.papers.experiment import Experiment, Line, by_seed
from experiments.papers.plots import dots
from silo_agent.trainer.models.catalogue import LearnerSpec


class Method(StrEnum):
    """Who trains."""

    LOCAL = "local"
    FEDCT = "fedct"
    CENTRAL = "central"


@dataclass(frozen=True)
class Cell:
    """One data set, learner and method on one split."""

    dataset: str
    learner: str
    method: str
    private: int
    """Rows per silo."""
    public: int
    test: int
    rounds: int
    seed: int


LEARNERS = {
    "decision_tree": "DT",
    "rulefit": "RuleFit",
    "xgboost": "XGBoost",
    "random_forest": "Random Forest",
}
TITLES = {
    "wine": "WineQuality",
    "breast-cancer": "BreastCancer",
    "adult": "AdultsIncome",
    "mushroom": "Mushroom",
    "covertype": "Covertype",
}
SILOS = 5
SIZES = {
    "wine": Sizes(SILOS, 27, 4100, 1059),
    "breast-cancer": Sizes(SILOS, 17, 370, 114),
    "adult": Sizes(SILOS, 6214, 10_000, 7769),
    "mushroom": Sizes(SILOS, 499, 4000, 1625),
    "covertype": Sizes(SILOS, 82_962, 50_000, 20_000),
}
FEWER = {
    ("adult", "rulefit"): Sizes(SILOS, 1000, 2000, 7769),
    ("covertype", "rulefit"): Sizes(SILOS, 500, 1500, 20_000),
}
"""Where RuleFit would take hours."""

PAPER = {
    ("wine", "decision_tree"): (0.95, 0.92),
    ("wine", "rulefit"): (0.93, 0.95),
    ("wine", "xgboost"): (0.94, 0.94),
    ("wine", "random_forest"): (0.96, 0.98),
    ("breast-cancer", "decision_tree"): (0.89, 0.89),
    ("breast-cancer", "rulefit"): (0.92, 0.93),
    ("breast-cancer", "xgboost"): (0.93, 0.94),
    ("breast-cancer", "random_forest"): (0.90, 0.93),
    ("adult", "decision_tree"): (0.81, 0.82),
    ("adult", "rulefit"): (0.84, 0.85),
    ("adult", "xgboost"): (0.85, 0.87),
    ("adult", "random_forest"): (0.85, 0.86),
    ("mushroom", "decision_tree"): (0.98, 1.0),
    ("mushroom", "rulefit"): (0.98, 1.0),
    ("mushroom", "xgboost"): (0.98, 1.0),
    ("mushroom", "random_forest"): (0.99, 1.0),
    ("covertype", "decision_tree"): (0.88, 0.94),
    ("covertype", "rulefit"): (0.73, 0.76),
    ("covertype", "xgboost"): (0.84, 0.87),
    ("covertype", "random_forest"): (0.90, 0.95),
}
"""FedCT and centralised."""
TOLERANCE = 0.02

WHY = {
    "wine": "135 private rows are split over five silos, 27 each; which ones matters more than the method, and the paper's "
    "table of wines is another one, with rows left out.",
    "covertype": "All private rows are used; the rest of the difference is the split.",
}
_WHY_FEWER = "RuleFit was given far fewer rows than in the paper here: a fit on all of them takes most of an hour."


def cells(seeds: int, quick: bool) -> list[Cell]:
    """Small tables first, Covertype last."""
    datasets = ("wine", "breast-cancer") if quick else tuple(SIZES)
    return [
        _cell(dataset, learner, method, seed)
        for seed in range(1 if quick else seeds)
        for dataset in datasets
        for learner in LEARNERS
        for method in Method
    ]


def _cell(dataset: str, learner: str, method: Method, seed: int) -> Cell:
    sizes = FEWER.get((dataset, learner), SIZES[dataset])
    return Cell(
        dataset=dataset,
        learner=learner,
        method=method,
        private=sizes.private,
        public=sizes.public,
        test=sizes.test,
        rounds=1 if dataset == "covertype" or learner == "rulefit" else 3,
        seed=seed,
    )


def measure(cell: Cell, folder: Path | None) -> TimedScores:
    """Rows of the whole table are drawn anew for every seed, Adult's official test rows among them."""
    dataset = replace(load_once(cell.dataset, folder), reserved=0)
    sizes = Sizes(SILOS, cell.private, cell.public, cell.test)
    rows = split_dataset(dataset, sizes, cell.seed).standardised()
    learner = LearnerSpec(name=cell.learner)
    match Method(cell.method):
        case Method.LOCAL:
            return local(rows, [learner] * SILOS, cell.seed)
        case Method.CENTRAL:
            return central(rows, learner, cell.seed)
        case Method.FEDCT:
            return federated(rows, [learner] * SILOS, cell.seed, rounds={"max_rounds": cell.rounds})


def lines(results: Mapping[Cell, TimedScores]) -> Sequence[Line]:
    """FedCT against the paper's FedCT column."""

    def accuracies(dataset: str, learner: str, method: Method) -> tuple[float, ...]:
        return by_seed(
            results,
            lambda cell: (cell.dataset, cell.learner, cell.method) == (dataset, learner, method),
            lambda one: one.accuracy,
        )

    return [
        Line(
            where=(TITLES[dataset], LEARNERS[learner]),
            ours=accuracies(dataset, learner, Method.FEDCT),
            paper=paper,
            least=round(paper - TOLERANCE, 4),
            beside={
                "local": accuracies(dataset, learner, Method.LOCAL),
                "centralised": accuracies(dataset, learner, Method.CENTRAL),
                "centralised, paper": (pooled,),
            },
            why=_why(dataset, learner),
        )
        for (dataset, learner), (paper, pooled) in PAPER.items()
    ]


def _why(dataset: str, learner: str) -> str:
    return _WHY_FEWER if (dataset, learner) in FEWER else WHY.get(dataset, "")


EXPERIMENT = Experiment(
    name="fedct-table3",
    title="FedCT, Table 3: interpretable learners on five tables",
    paper="Abourayya et al., *Little is Enough*, AAAI 2025, Table 3; sizes and settings from appendix E.3 of the older version.",
    success="FedCT within 0.02 of the paper's FedCT column, or better.",
    about="""
Five silos, the paper's sizes: public rows 4 100 / 370 / 10 000 / 4 000 / 50 000, private rows in all 135 / 85 / 31 070 / 2 495 / 414 810, test rows
1 059 / 114 / 7 769 / 1 625 / 20 000 (Covertype's test has 116 202 in the paper). WineQuality is red or white from the measurements, repeated wines once, as the
authors' code has it. Features have mean 0 and deviation 1 on the public rows. Rows are drawn anew for every seed; nothing was tuned. Trees: Gini, at least 2 rows to split. RuleFit:
tree size 4, at most 200 rules. XGBoost and forest: 100 trees, the libraries' defaults.

Learners are refitted on D ∪ P in every round, and the model at home takes all of P. Three rounds; one for Covertype and for RuleFit, which are slow: trees,
boosting and forests reproduce P almost perfectly, so that the consensus does not change after the first round. RuleFit has fewer rows than in the paper on two tables:
1 000 private per silo and 2 000 public on AdultsIncome, 500 and 1 500 on Covertype.
""",
    columns=("data set", "learner"),
    cell=Cell,
    result=TimedScores,
    cells=cells,
    measure=measure,
    lines=lines,
    figure=dots,
    datasets=("wine", "adult", "mushroom", "covertype"),
)
