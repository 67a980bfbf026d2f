"""What FEDAUX's certainties are worth: the consensus with every vote alike, and with votes weighted, at several ε.

Ten silos, one round, an extractor of principal components of the public rows; learners see its features. Ballots carry
labels and certainties, so the same ones are counted twice, by `majority` and by `certainty_weighted`. Labels of the
public rows are never seen; they only score, and only where votes are cast (not on D⁻).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console

from experiments.data import Sizes, load, require_files, split_dataset
from experiments.federation import define_task, make_silos, run_federation
from experiments.harness import Failure, Table, run
from experiments.scores import share_right
from experiments.tables import markdown, mean_and_error
from silo_agent.trainer.models.catalogue import LearnerSpec
from silo_agent.trainer.pretraining.pretraining import train
from silo_agent.trainer.privacy.settings import CertaintySettings, PrivacySettings
from silo_agent.trainer.settings import TrainingSettings
from wire.extractor_file import ExtractorKind
from wire.runtime.files import write_atomically
from wire.task.consensus_policy import ConsensusPolicy, RuleName

SILOS = tuple(f"silo-{index}" for index in range(10))
EPSILONS = (0.1, 1.0, 10.0, 1e6)
"""Of the certainties; the last leaves hardly any noise."""
_PUBLIC = {"digits": 600, "mnist": 5000, "fashion-mnist": 5000}
_PRIVATE = {"digits": (94,), "mnist": (94, 300, 1000, 3000), "fashion-mnist": (94, 300, 1000, 3000)}
"""Rows per silo, on average."""
MAJORITY = ConsensusPolicy(rule=RuleName.MAJORITY)
"""Every vote counts alike."""
_FIRST_SEED = 100
"""Splits 0 to 3 of FashionMNIST were seen when the scale of scores was chosen."""


@dataclass(frozen=True)
class Cell:
    """One split."""

    dataset: str
    rows: int
    alpha: float
    """Dirichlet concentration of every class over the silos."""
    seed: int


@dataclass(frozen=True)
class Result:
    """Share of the rows voted on whose consensus is right."""

    uniform: float
    eps_0_1: float
    eps_1: float
    eps_10: float
    no_noise: float


def report(
    out: Path, seeds: int, quick: bool, console: Console, data: Path | None = None
) -> list[Failure[Cell]]:
    """Measures what is missing in OUT/certainty.csv and writes OUT/certainty.md; the cells that failed.

    Without a folder of data sets, or in a hurry, digits alone.
    """
    names = ("digits",) if quick or data is None else tuple(_PUBLIC)
    for name in names:
        require_files(name, data)
    table = Table(out / "certainty.csv", Cell, Result)
    wanted = cells(names, 1 if quick else seeds)
    failures = run(table, wanted, partial(measure, folder=data), console, title="splits")
    known = table.read()
    results = {cell: known[cell] for cell in wanted if cell in known}
    write_atomically(out / "certainty.md", page(results).encode())
    console.print(f"Written to {out / 'certainty.md'}.")
    return failures


def cells(names: Sequence[str], seeds: int) -> list[Cell]:
    """Every data set in every size, with silos that share hardly a class and with silos that are alike."""
    return [
        Cell(name, rows, alpha, _FIRST_SEED + seed)
        for seed in range(seeds)
        for name in names
        for rows in _PRIVATE[name]
        for alpha in (0.01, 100.0)
    ]


def measure(cell: Cell, folder: Path | None) -> Result:
    """One federation per ε, all on the same split."""
    sizes = Sizes(len(SILOS), cell.rows, _PUBLIC[cell.dataset], 100, cell.alpha)
    rows = split_dataset(load(cell.dataset, folder), sizes, cell.seed)
    definition = define_task(
        rows.public,
        rows.classes,
        SILOS,
        method="fedaux",
        extractor="00" * 32,
        rounds={"max_rounds": 1},
    )
    extractor = train(rows.public, ExtractorKind.PCA, public_set=definition.public_set)
    uniform, weighted = 0.0, []
    for epsilon in EPSILONS:
        silos = make_silos(SILOS, rows.private, partial(_settings, cell, epsilon))
        result = run_federation(
            definition, silos, rows.public, extractor=extractor, home_models=False
        )
        weighted.append(share_right(result.labels(), rows.public_labels))
        uniform = share_right(result.recounted(MAJORITY), rows.public_labels)
    return Result(uniform, *weighted)


def _settings(cell: Cell, epsilon: float, index: int) -> TrainingSettings:
    return TrainingSettings(
        model=LearnerSpec(name="logistic_regression"),
        features="extractor",
        seed=cell.seed * len(SILOS) + index,
        privacy=PrivacySettings(certainty=CertaintySettings(epsilon=epsilon)),
    )


def page(results: dict[Cell, Result]) -> str:
    """A line per setting: how right the consensus is, and the gain of certainties at each ε with its error."""
    lines: dict[tuple[str, str, str], list[Result]] = {}
    for cell, result in results.items():
        lines.setdefault((cell.dataset, f"{cell.alpha:g}", str(cell.rows)), []).append(result)
    header = [
        "data",
        "α",
        "rows per silo",
        "uniform",
        *(f"ε = {e:g}" for e in EPSILONS[:-1]),
        "no noise",
    ]
    return markdown(header, [[*key, *_shown(found)] for key, found in lines.items()])


def _shown(found: Sequence[Result]) -> list[str]:
    plain = [one.uniform for one in found]
    shown = [f"{np.mean(plain):.3f}"]
    for name in ("eps_0_1", "eps_1", "eps_10", "no_noise"):
        weighted = [float(getattr(one, name)) for one in found]
        gain, error = mean_and_error([a - b for a, b in zip(weighted, plain, strict=True)])
        spread = "" if np.isnan(error) else f" ± {error:.3f}"
        shown.append(f"{np.mean(weighted):.3f} ({gain:+.3f}{spread})")
    return shown
