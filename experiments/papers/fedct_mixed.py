"""FedCT, Table 5: silos with different kinds of learners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.data import Sizes, load_once, split_dataset
from experiments.papers.cotraining import TimedScores, federated, local
from experiments.papers.experiment import Experiment, Line, by_seed
from experiments.papers.plots import dots
from silo_agent.trainer.models.catalogue import LearnerSpec

SIZES = Sizes(silos=5, private=17, public=370, test=114)
ROUNDS = 3
SHORT = {
    "decision_tree": "DT",
    "random_forest": "RF",
    "rulefit": "RuleFit",
    "xgboost": "XGBoost",
    "mlp": "MLP",
}
MIXTURES = {
    ("decision_tree", "random_forest", "rulefit", "xgboost", "random_forest"): 0.95,
    ("decision_tree", "mlp", "rulefit", "xgboost", "random_forest"): 0.93,
    ("xgboost",) * 5: 0.94,
}
"""The five silos' learners, and the paper's accuracy."""
TOLERANCE = 0.02


@dataclass(frozen=True)
class Cell:
    """One mixture on one split; `learners` with commas between."""

    learners: str
    together: bool
    """FedCT, or every silo on its own."""
    rounds: int
    seed: int


def cells(seeds: int, quick: bool) -> list[Cell]:
    """A run takes seconds."""
    return [
        Cell(",".join(learners), together, ROUNDS, seed)
        for seed in range(1 if quick else seeds)
        for learners in MIXTURES
        for together in (True, False)
    ]


def measure(cell: Cell, folder: Path | None) -> TimedScores:
    """BreastCancer comes with scikit-learn: no folder is needed."""
    rows = split_dataset(load_once("breast-cancer", folder), SIZES, cell.seed)
    learners = [LearnerSpec(name=name) for name in cell.learners.split(",")]
    if not cell.together:
        return local(rows, learners, cell.seed)
    return federated(rows, learners, cell.seed, rounds={"max_rounds": cell.rounds})


def lines(results: Mapping[Cell, TimedScores]) -> Sequence[Line]:
    """FedCT against the paper's."""

    def accuracies(learners: str, together: bool) -> tuple[float, ...]:
        return by_seed(
            results,
            lambda cell: (cell.learners, cell.together) == (learners, together),
            lambda one: one.accuracy,
        )

    return [
        Line(
            where=("BreastCancer", " · ".join(SHORT[name] for name in learners)),
            ours=accuracies(",".join(learners), True),
            paper=paper,
            least=round(paper - TOLERANCE, 4),
            beside={"local": accuracies(",".join(learners), False)},
            why="114 test rows and 17 private rows per silo: one split differs from the next by several points.",
        )
        for learners, paper in MIXTURES.items()
    ]


EXPERIMENT = Experiment(
    name="fedct-mixed",
    title="FedCT, Table 5: another kind of learner in every silo",
    paper="Abourayya et al., *Protecting Sensitive Data through Federated Co-Training* (the older version), Table 5, appendix D.1.",
    success="FedCT within 0.02 of the paper's accuracy, or better.",
    about="""
BreastCancer as in Table 3: five silos of 17 rows, 370 public rows, 114 test rows, drawn anew for every seed; three rounds; nothing was tuned. Learners have the
product's defaults; MLP is scikit-learn's with one hidden layer of 100. The accuracy is the mean over the five silos' own models.
""",
    columns=("data set", "learners"),
    cell=Cell,
    result=TimedScores,
    cells=cells,
    measure=measure,
    lines=lines,
    figure=dots,
)
