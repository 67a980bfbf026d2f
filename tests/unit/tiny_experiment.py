"""A table of two numbers for the tests of the framework, in a module that its processes import quickly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.papers.experiment import Experiment, Line, Timed, by_seed
from experiments.papers.plots import dots
from wire.errors import ConfigurationError


@dataclass(frozen=True)
class Throw:
    learner: str
    size: int
    seed: int


@dataclass(frozen=True)
class Landing(Timed):
    accuracy: float
    local: float | None


VALUES = {"tree": 0.90, "forest": 0.95}
PAPER = {"tree": 0.95, "forest": 0.92}


def cells(seeds: int, quick: bool) -> list[Throw]:
    size = 10 if quick else 1000
    return [Throw(learner, size, seed) for seed in range(seeds) for learner in VALUES]


def measure(cell: Throw, folder: Path | None) -> Landing:
    if cell.learner == "tree" and cell.seed == 2:
        raise ConfigurationError("This throw went under the table.", "Throw again.")
    return Landing(accuracy=VALUES[cell.learner] + cell.seed / 100, local=None)


def lines(results: Mapping[Throw, Landing]) -> Sequence[Line]:
    return [
        Line(
            where=("dice", learner),
            ours=by_seed(
                results,
                lambda cell, learner=learner: cell.learner == learner,  # type: ignore[misc]
                lambda one: one.accuracy,
            ),
            paper=paper,
            least=paper - 0.02,
            beside={"local": by_seed(results, lambda _: True, lambda one: one.local)},
            why="The dice are small.",
        )
        for learner, paper in PAPER.items()
    ]


EXPERIMENT = Experiment(
    name="tiny-table",
    title="Tiny, Table 0: dice",
    paper="Nobody, *Nothing*, 2020.",
    success="Within 0.02 of the paper.",
    about="Thrown once per seed.",
    columns=("what", "learner"),
    cell=Throw,
    result=Landing,
    cells=cells,
    measure=measure,
    lines=lines,
    figure=dots,
)
