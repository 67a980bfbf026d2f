"""Synthetic problems: Gaussian classes of a given difficulty, so that planning needs no data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from silo_agent.trainer.models.linear import logistic_regression
from silo_agent.trainer.models.protocol import Features, Labelled, Learner, Problem
from wire.errors import ConfigurationError

_TRIALS: Final = 3
_FRESH: Final = 2000
_FARTHEST: Final = 64.0
_NEAR_ENOUGH: Final = 0.002


@dataclass(frozen=True, eq=False)
class SyntheticProblem:
    """Equally frequent classes, each a unit Gaussian ball around its own centre, the same at every silo."""

    centres: Features
    """(classes, features), each of length 1."""
    separation: float
    """How far a class lies from the origin; the larger, the easier."""

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.centres)

    def draw(self, rows: int, rng: np.random.Generator) -> Labelled:
        """`rows` independent patients with their true labels."""
        labels = rng.integers(0, self.classes, rows)
        noise = rng.standard_normal((rows, self.centres.shape[1]))
        return Labelled(self.separation * self.centres[labels] + noise, labels)


def learner(classes: int, features: int, seed: int = 0) -> Learner:
    """An untrained learner of a made silo: logistic regression, quick and the right model for these classes."""
    return logistic_regression({}, Problem(classes, (features,), seed))


def right(predicted: npt.NDArray[np.integer], truth: npt.NDArray[np.integer]) -> float:
    """Share of the labels that are true."""
    return float(np.mean(predicted == truth))


def problem_of_accuracy(
    classes: int, features: int, rows: int, accuracy: float, rng: np.random.Generator
) -> SyntheticProblem:
    """The problem on which the learner, trained on `rows` rows, is right with probability `accuracy`.

    ConfigurationError if there is none: at or below chance, or more than so few rows can teach.
    """
    if not 1 / classes < accuracy < 1:
        raise ConfigurationError(
            f"An expert accuracy of {accuracy:g} cannot be planned for: guessing one of {classes} classes "
            f"is right {1 / classes:.1%} of the time.",
            f"Give --expert-accuracy a value above {1 / classes:.3g} and below 1.",
        )
    directions = rng.standard_normal((classes, features))
    centres = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    problem = SyntheticProblem(centres, _FARTHEST)
    # The same draws at every separation: accuracy then rises steadily with it.
    seeds = [int(seed) for seed in rng.integers(0, 2**63, _TRIALS)]
    most = _reached(problem, rows, seeds)
    if most < accuracy:
        raise ConfigurationError(
            f"{rows} rows cannot teach {classes} classes to {accuracy:.0%}: even if the classes lay far "
            f"apart, a learner would be right {most:.0%} of the time.",
            "Give a lower --expert-accuracy or more --rows-per-silo.",
        )
    low, high = 0.0, _FARTHEST
    while high - low > _NEAR_ENOUGH * high:
        middle = (low + high) / 2
        if _reached(replace(problem, separation=middle), rows, seeds) < accuracy:
            low = middle
        else:
            high = middle
    return replace(problem, separation=high)


def _reached(problem: SyntheticProblem, rows: int, seeds: list[int]) -> float:
    features = problem.centres.shape[1]
    scores = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        private, fresh = problem.draw(rows, rng), problem.draw(_FRESH, rng)
        trained = learner(problem.classes, features).fit(private.features, private.labels)
        scores.append(right(trained.predict(fresh.features), fresh.labels))
    return float(np.mean(scores))
