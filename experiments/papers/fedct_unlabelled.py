"""FedCT, Figure 10: accuracy against the number of public rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.data import Sizes, load_once, split_dataset
from experiments.papers.cotraining import TimedScores
from experiments.papers.experiment import Experiment, Line, by_seed
from experiments.papers.perceptrons import TITLES, Method, Steps, train
from experiments.papers.plots import curves_over

AMOUNTS = (10, 30, 100, 300, 1000)
STEPS = Steps(300, 50)
SILOS, PRIVATE, TEST = 5, 100, 624
METHODS = (Method.FEDCT, Method.LOCAL, Method.CENTRAL)


@dataclass(frozen=True)
class Cell:
    """One method with so many public rows; those that use none have the largest amount set aside."""

    method: str
    public: int
    steps: int
    period: int
    seed: int


def cells(seeds: int, quick: bool) -> list[Cell]:
    """FedCT for every amount, the others once."""
    steps = Steps(60, 20) if quick else STEPS
    return [
        Cell(method, public, steps.total, steps.period, seed)
        for seed in range(1 if quick else seeds)
        for method in METHODS
        for public in (AMOUNTS if method is Method.FEDCT else AMOUNTS[-1:])
    ]


def measure(cell: Cell, folder: Path | None) -> TimedScores:
    """Silos keep their rows whatever the amount: the public ones are the first of the largest amount."""
    rows = split_dataset(
        load_once("chest-xray", folder), Sizes(SILOS, PRIVATE, AMOUNTS[-1], TEST), cell.seed
    ).with_public(cell.public)
    return train(Method(cell.method), rows, Steps(cell.steps, cell.period), cell.seed)


def lines(results: Mapping[Cell, TimedScores]) -> Sequence[Line]:
    """FedCT for every amount; the last must beat local-only on the same rows."""

    def accuracies(method: Method, public: int) -> tuple[float, ...]:
        return by_seed(
            results,
            lambda cell: cell.method == method and cell.public == public,
            lambda one: one.accuracy,
        )

    without = {method: accuracies(method, AMOUNTS[-1]) for method in METHODS[1:]}
    alone = without[Method.LOCAL]
    return [
        Line(
            where=(TITLES[Method.FEDCT], str(public)),
            ours=accuracies(Method.FEDCT, public),
            least=sum(alone) / len(alone) if alone and public == AMOUNTS[-1] else None,
            beside={TITLES[method]: values for method, values in without.items()},
            why=WHY,
        )
        for public in AMOUNTS
    ]


WHY = (
    "There is little to gain: all silos' images in one place are hardly better than 100 of them, since the official test images were drawn otherwise than the rest "
    "(see Table 1). 624 of them tell two models apart to about ±0.02."
)
EXPERIMENT = Experiment(
    name="fedct-unlabelled",
    title="FedCT, Figure 10: how many public rows it takes",
    paper="Abourayya et al., *Protecting Sensitive Data through Federated Co-Training* (the older version), Figure 10, appendix D.6.",
    success="With 1 000 public rows FedCT is above local-only; the target is local-only's mean on the same splits. The paper has a curve and no numbers.",
    about="""
Chest X-rays at 56 × 56, five silos of 100 images as in the paper, patients in one place, the 624 official test images. The perceptron of Table 1, T = 300 steps per
silo and b = 50 (in a first look with b = 20 the network still said pneumonia to nearly everything at the first ballot, and the consensus kept it so). Silos have the same rows whatever the amount; smaller public sets are part of larger ones. Local-only and centralised use no public row.
""",
    columns=("method", "public rows"),
    cell=Cell,
    result=TimedScores,
    cells=cells,
    measure=measure,
    lines=lines,
    figure=curves_over("public rows"),
    datasets=("chest-xray",),
)
