"""What hostile silos do to a consensus: some vote at random, always the same, flipped, or in collusion; each rule decides.

Ballots are those of the product's own learners on scikit-learn's data (`experiments.federation`), or synthetic: experts of
known accuracy who err alone or, on hard rows, together. The same ballots are counted three times: as cast, with the
hostile silos' exchanged for hostile ones, and without theirs. The last is what a rule could have at best that sees
through them and makes no use of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console

from coordinator.consensus.elect import elect
from experiments.data import Sizes, load, split_dataset
from experiments.federation import define_task, make_silos, run_federation
from experiments.harness import Failure, Table, run
from experiments.seeded import SeededBits
from experiments.tables import markdown, mean_and_error
from silo_agent.trainer.models.catalogue import LearnerSpec
from silo_agent.trainer.settings import TrainingSettings
from wire.ballot import Labels, pack, unpack
from wire.privacy.declaration import Declaration
from wire.runtime.files import write_atomically
from wire.task.definition import TaskDefinition

RULES = ("majority", "trimmed", "staple")


class Attack(StrEnum):
    """What hostile silos vote."""

    RANDOM = "random"
    """Any class, on every row anew."""
    CONSTANT = "constant"
    """One class, all of them the same."""
    FLIPPED = "flipped"
    """The class after the one their own model finds."""
    COLLUDING = "colluding"
    """All the same: the class after the one that the honest majority finds, which they are assumed to know."""


@dataclass(frozen=True)
class Setting:
    """Who votes on what."""

    data: str
    """digits or breast-cancer; or made."""
    silos: int
    hostile: int
    learner: str = ""
    """With data of scikit-learn: every silo's."""
    rows_per_silo: int = 0
    alpha: float | None = None
    """Dirichlet concentration of classes over silos; None splits rows evenly."""
    public_rows: int = 400
    classes: int = 0
    """With made data, as what follows."""
    weakest: float = 0.0
    """Accuracy of the weakest expert ..."""
    strongest: float = 0.0
    """... and of the strongest; the others in between at random."""
    hard: float = 0.0
    """Share of rows on which every expert makes the same mistake with probability 0.6."""

    @property
    def title(self) -> str:
        """In a table."""
        if self.data != "made":
            dealt = f", Dirichlet({self.alpha:g})" if self.alpha else ""
            return f"{self.data}, {self.learner} on {self.rows_per_silo} rows{dealt}"
        together = f", {self.hard:.0%} hard rows" if self.hard else ""
        right = f"{self.weakest:.0%}–{self.strongest:.0%} right"
        return f"made, {self.public_rows} rows, {self.classes} classes, {right}{together}"


SETTINGS = (
    Setting("digits", 5, 1, "logistic_regression", 40),
    Setting("digits", 10, 2, "logistic_regression", 40),
    Setting("digits", 5, 1, "decision_tree", 100),
    Setting("digits", 10, 2, "decision_tree", 100),
    Setting("breast-cancer", 5, 1, "decision_tree", 30, public_rows=205),
    Setting("breast-cancer", 10, 2, "decision_tree", 30, public_rows=205),
    Setting("made", 5, 1, public_rows=2000, classes=2, weakest=0.7, strongest=0.85),
    Setting("made", 10, 2, public_rows=2000, classes=2, weakest=0.7, strongest=0.85),
    Setting("made", 5, 1, public_rows=2000, classes=10, weakest=0.7, strongest=0.85),
    Setting("made", 10, 2, public_rows=2000, classes=10, weakest=0.7, strongest=0.85),
    Setting("made", 5, 1, public_rows=2000, classes=3, weakest=0.75, strongest=0.9, hard=0.1),
    Setting("made", 10, 2, public_rows=2000, classes=3, weakest=0.75, strongest=0.9, hard=0.1),
    Setting("made", 5, 1, public_rows=2000, classes=3, weakest=0.8, strongest=0.95, hard=0.15),
    Setting("made", 10, 2, public_rows=2000, classes=2, weakest=0.75, strongest=0.9, hard=0.1),
    Setting("digits", 10, 2, "decision_tree", 100, alpha=0.3),
    Setting("made", 7, 1, public_rows=100, classes=2, weakest=0.55, strongest=0.7),
)


@dataclass(frozen=True)
class Cell:
    """One attack on one federation."""

    setting: int
    """Its place in SETTINGS."""
    attack: str
    seed: int


@dataclass(frozen=True)
class Result:
    """Share of the public rows that the consensus has right."""

    majority_honest: float
    majority_attacked: float
    majority_without: float
    trimmed_honest: float
    trimmed_attacked: float
    trimmed_without: float
    staple_honest: float
    staple_attacked: float
    staple_without: float


@dataclass(frozen=True, eq=False)
class HonestBallots:
    """What every silo votes if it is honest, and the true labels."""

    definition: TaskDefinition
    ballots: Mapping[str, Labels]
    truth: npt.NDArray[np.int64]


def report(out: Path, seeds: int, quick: bool, console: Console) -> list[Failure[Cell]]:
    """Measures what is missing in OUT/robustness.csv and writes OUT/robustness.md; the cells that failed."""
    table = Table(out / "robustness.csv", Cell, Result)
    cells = [
        Cell(setting, attack, seed)
        for setting in range(len(SETTINGS))
        for seed in range(min(seeds, 2) if quick else seeds)
        for attack in Attack
    ]
    failures = run(table, cells, measure, console, title="elections")
    page = out / "robustness.md"
    write_atomically(page, summary(table.read()).encode())
    console.print(f"Written to {page}.")
    return failures


def measure(cell: Cell) -> Result:
    """One cell of the table."""
    setting = SETTINGS[cell.setting]
    cast = _honest_ballots(setting, cell.seed)
    names = sorted(cast.ballots)
    hostile = names[: setting.hostile]
    honest = {name: cast.ballots[name] for name in names[setting.hostile :]}
    attacked = {**honest, **attack(Attack(cell.attack), cast, hostile, cell.seed)}
    shares = {
        f"{rule}_{what}": accuracy(cast, ballots, rule)
        for rule in RULES
        for what, ballots in (
            ("honest", cast.ballots),
            ("attacked", attacked),
            ("without", honest),
        )
    }
    return Result(**shares)


def accuracy(cast: HonestBallots, ballots: Mapping[str, Labels], rule: str) -> float:
    """Share of rows a rule has right with these ballots."""
    values = {**cast.definition.model_dump(), "consensus": {"rule": rule}}
    definition = TaskDefinition.model_validate(values)
    box = [(name, pack(ballots[name], definition.shape)) for name in sorted(ballots)]
    declared = {name: Declaration() for name in ballots}
    outcome = elect(definition, 1, declared, box, SeededBits(0))
    return float(np.mean(outcome.labels() == cast.truth))


def attack(
    kind: Attack, cast: HonestBallots, hostile: Sequence[str], seed: int
) -> dict[str, Labels]:
    """What the hostile silos vote instead."""
    draw = np.random.default_rng((seed, 1))
    classes, rows = len(cast.definition.labels), cast.definition.rows
    match kind:
        case Attack.RANDOM:
            return {name: draw.integers(0, classes, rows, dtype=np.int32) for name in hostile}
        case Attack.CONSTANT:
            chosen = draw.integers(0, classes, dtype=np.int32)
            return {name: np.full(rows, chosen) for name in hostile}
        case Attack.FLIPPED:
            return {name: (cast.ballots[name] + 1) % classes for name in hostile}
        case Attack.COLLUDING:
            counts = np.zeros((rows, classes))
            for name in set(cast.ballots) - set(hostile):
                counts[np.arange(rows), cast.ballots[name]] += 1
            same: Labels = ((counts.argmax(axis=1) + 1) % classes).astype(np.int32)
            return dict.fromkeys(hostile, same)


# The attacks on one federation come one after another.
@lru_cache(maxsize=16)
def _honest_ballots(setting: Setting, seed: int) -> HonestBallots:
    names = [f"silo-{number:02}" for number in range(setting.silos)]
    if setting.data == "made":
        return _synthetic(setting, names, seed)
    sizes = Sizes(setting.silos, setting.rows_per_silo, setting.public_rows, 0, setting.alpha)
    rows = split_dataset(load(setting.data), sizes, seed)
    definition = define_task(rows.public, rows.classes, names, rounds={"max_rounds": 1})
    settings = TrainingSettings(model=LearnerSpec(name=setting.learner), seed=seed)
    silos = make_silos(names, rows.private, lambda _: settings)
    result = run_federation(definition, silos, rows.public, home_models=False)
    ballots = {name: unpack(data, definition.shape) for name, data in result.ballots[0].items()}
    return HonestBallots(definition, ballots, rows.public_labels)


def _synthetic(setting: Setting, names: Sequence[str], seed: int) -> HonestBallots:
    draw = np.random.default_rng((seed, 0))
    rows, classes = setting.public_rows, setting.classes
    truth = draw.integers(0, classes, rows)
    hard, wrong = draw.random(rows) < setting.hard, _other(truth, classes, draw)
    ballots = {}
    for name in names:
        right = draw.random(rows) < draw.uniform(setting.weakest, setting.strongest)
        alone = np.where(right, truth, _other(truth, classes, draw))
        together = hard & (draw.random(rows) < 0.6)
        ballots[name] = np.where(together, wrong, alone).astype(np.int32)
    definition = define_task(truth[:, None], classes, names, rounds={"max_rounds": 1})
    return HonestBallots(definition, ballots, truth)


def _other(
    truth: npt.NDArray[np.int64], classes: int, draw: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Any class but the true one."""
    return (truth + draw.integers(1, classes, len(truth))) % classes


def summary(known: Mapping[Cell, Result]) -> str:
    """Means over seeds as Markdown: a line per federation and rule, a column per attack."""
    header = ["hostile", "federation", "rule", "all honest", *Attack, "without them"]
    shown = []
    for number, setting in enumerate(SETTINGS):
        results = {
            kind: [
                result
                for cell, result in known.items()
                if cell.setting == number and cell.attack == kind
            ]
            for kind in Attack
        }
        if not all(results.values()):
            continue
        for rule in RULES:
            attacked = [_mean(results[kind], f"{rule}_attacked") for kind in Attack]
            honest, without = (
                _mean(results[Attack.RANDOM], f"{rule}_{what}") for what in ("honest", "without")
            )
            title = [f"{setting.hostile} of {setting.silos}", setting.title]
            shown.append([*title, rule, honest, *attacked, without])
    return markdown(header, shown)


def _mean(results: Sequence[Result], column: str) -> str:
    return f"{mean_and_error([getattr(result, column) for result in results])[0]:.3f}"
