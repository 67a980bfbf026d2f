"""FedCT, Figure 6: the same private rows over more and more silos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.data import Sizes, load_once, split_dataset
from experiments.papers.cotraining import TimedScores
from experiments.papers.experiment import Experiment, Line, by_seed
from experiments.papers.perceptrons import TITLES, Method, Steps, train
from experiments.papers.plots import curves_over

SILOS = (5, 10, 20, 40, 80)
PRIVATE, PUBLIC, TEST = 10_000, 5_000, 10_000
STEPS = Steps(300, 50)
METHODS = (Method.FEDCT, Method.FEDAVG, Method.LOCAL)


@dataclass(frozen=True)
class Cell:
    """One method over so many silos."""

    method: str
    silos: int
    public: int
    steps: int
    period: int
    seed: int


def cells(seeds: int, quick: bool) -> list[Cell]:
    """Few silos first."""
    steps = Steps(60, 20) if quick else STEPS
    return [
        Cell(method, silos, PUBLIC, steps.total, steps.period, seed)
        for seed in range(1 if quick else seeds)
        for silos in (SILOS[:2] if quick else SILOS)
        for method in METHODS
    ]


def measure(cell: Cell, folder: Path | None) -> TimedScores:
    """All silos together have as many rows, however many they are."""
    sizes = Sizes(cell.silos, PRIVATE // cell.silos, cell.public, TEST)
    rows = split_dataset(load_once("fashion-mnist", folder), sizes, cell.seed)
    return train(Method(cell.method), rows, Steps(cell.steps, cell.period), cell.seed)


def lines(results: Mapping[Cell, TimedScores]) -> Sequence[Line]:
    """FedCT must beat local-only on the same split."""

    def accuracies(method: Method, silos: int) -> tuple[float, ...]:
        return by_seed(
            results,
            lambda cell: cell.method == method and cell.silos == silos,
            lambda one: one.accuracy,
        )

    def least(method: Method, silos: int) -> float | None:
        alone = accuracies(Method.LOCAL, silos)
        return sum(alone) / len(alone) if alone and method is Method.FEDCT else None

    return [
        Line(
            where=(TITLES[method], str(silos)),
            ours=accuracies(method, silos),
            least=least(method, silos),
            why=WHY,
        )
        for method in METHODS
        for silos in SILOS
    ]


WHY = (
    "With T = 300 steps a silo of 2 000 rows has not yet learned what its own rows teach, and half of every minibatch goes to the consensus; "
    "with T = 3 000 FedCT is above local-only there (Table 1)."
)
EXPERIMENT = Experiment(
    name="fedct-scaling",
    title="FedCT, Figure 6: from 5 to 80 silos",
    paper="Abourayya et al., *Protecting Sensitive Data through Federated Co-Training* (the older version), Figure 6.",
    success="FedCT is above local-only however many silos there are; the target is local-only's mean on the same splits. The paper has a curve and no numbers: a moderate decline, FedAvg slightly above FedCT.",
    about="""
FashionMNIST, 10 000 private rows in all, so a silo of 80 has 125; 5 000 public rows (50 000 in the paper) and the 10 000 official test images. The perceptron of Table 1,
T = 300 steps per silo and b = 50 (20 000 and 50): 80 silos share two cores here. FedCT's and local-only's numbers are means over all silos' own models.
""",
    columns=("method", "silos"),
    cell=Cell,
    result=TimedScores,
    cells=cells,
    measure=measure,
    lines=lines,
    figure=curves_over("silos"),
    datasets=("fashion-mnist",),
)
