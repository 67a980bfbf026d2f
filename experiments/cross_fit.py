"""What cross-fitting is worth: how right the consensus is after each round, with k folds and without.

Five silos with learners that memorise what they are fitted on. Public labels are never seen; they only score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console

from experiments.data import Sizes, load, split_dataset
from experiments.federation import define_task, make_silos, run_federation
from experiments.harness import Failure, Table, run
from experiments.tables import markdown, mean_and_error
from silo_agent.trainer.models.catalogue import LearnerSpec
from silo_agent.trainer.settings import TrainingSettings
from wire.runtime.files import write_atomically

ROUNDS = 4
SILOS = tuple(f"silo-{index}" for index in range(5))
_SIZES = {"digits": (200, 400, 397), "breast-cancer": (50, 205, 114)}


@dataclass(frozen=True)
class Cell:
    """One federation."""

    dataset: str
    alpha: float | None
    """Dirichlet concentration of labels over the silos; None splits evenly."""
    learner: str
    cross_fit: int
    seed: int


@dataclass(frozen=True)
class Result:
    """Share of the public rows whose consensus is right, after each round."""

    round_1: float
    round_2: float
    round_3: float
    round_4: float


def report(out: Path, seeds: int, quick: bool, console: Console) -> list[Failure[Cell]]:
    """Measures what is missing in OUT/cross-fit.csv and writes OUT/cross-fit.md; the cells that failed."""
    table = Table(out / "cross-fit.csv", Cell, Result)
    wanted = cells(1 if quick else seeds, quick)
    failures = run(table, wanted, measure, console, title="federations")
    known = table.read()
    results = {cell: known[cell] for cell in wanted if cell in known}
    write_atomically(out / "cross-fit.md", page(results).encode())
    console.print(f"Written to {out / 'cross-fit.md'}.")
    return failures


def cells(seeds: int, quick: bool) -> list[Cell]:
    """Data sets, splits, learners and folds, every one with every seed."""
    learners = ("decision_tree",) if quick else ("decision_tree", "random_forest")
    return [
        Cell(dataset, alpha, learner, folds, seed)
        for dataset in _SIZES
        for alpha in (None, 0.5)
        for learner in learners
        for folds in (1, 2)
        for seed in range(seeds)
    ]


def measure(cell: Cell) -> Result:
    """One federation, round by round."""
    private, public, test = _SIZES[cell.dataset]
    sizes = Sizes(len(SILOS), private, public, test, cell.alpha)
    rows = split_dataset(load(cell.dataset), sizes, cell.seed)
    definition = define_task(
        rows.public,
        rows.classes,
        SILOS,
        cross_fit=cell.cross_fit,
        rounds={"max_rounds": ROUNDS},
    )
    silos = make_silos(SILOS, rows.private, partial(_settings, cell))
    result = run_federation(definition, silos, rows.public, home_models=False)
    return Result(*(float(np.mean(one.labels() == rows.public_labels)) for one in result.outcomes))


def _settings(cell: Cell, index: int) -> TrainingSettings:
    seed = cell.seed * len(SILOS) + index
    return TrainingSettings(model=LearnerSpec(name=cell.learner), seed=seed)


def page(results: dict[Cell, Result]) -> str:
    """A line per setting: mean accuracy after each round, and the gain since the first with its error."""
    lines: dict[tuple[str, str, str, str], list[Result]] = {}
    for cell, result in results.items():
        split = "even" if cell.alpha is None else f"Dirichlet {cell.alpha:g}"
        key = (cell.dataset, split, cell.learner, str(cell.cross_fit))
        lines.setdefault(key, []).append(result)
    header = [
        "data",
        "split",
        "learner",
        "k",
        *(f"round {n}" for n in range(1, ROUNDS + 1)),
        "gain",
    ]
    return markdown(header, [[*key, *_shown(found)] for key, found in lines.items()])


def _shown(found: Sequence[Result]) -> list[str]:
    rounds = np.array([list(vars(one).values()) for one in found])
    gain, error = mean_and_error(list(rounds[:, -1] - rounds[:, 0]))
    shown = f"{gain:+.3f}" + ("" if np.isnan(error) else f" ± {error:.3f}")
    return [*(f"{value:.3f}" for value in rounds.mean(axis=0)), shown]
