"""What an attacker reads off messages about the public set: numbers, a student of the victim, its margins."""

from __future__ import annotations

from typing import Final

import numpy as np

from experiments.data.scaling import Reals, Scaling
from silo_agent.trainer.models.protocol import Features, Labels
from wire.ballot import BEST_SCORE, BallotShape, Encoding, unpack_one_hot, unpack_scored

_SMOOTHING: Final = 0.1
"""Ridge of the student, where a kernel of 1 is a row itself."""


def votes_as_numbers(ballot: bytes, shape: BallotShape) -> Reals:
    """(rows, classes): 1 where there is a vote, its certainty where there is one, 0 elsewhere."""
    ones = unpack_one_hot(ballot, shape).astype(float)
    if shape.encoding is Encoding.SCORED:
        _, scores = unpack_scored(ballot, shape)
        ones = ones * (scores[:, None] / BEST_SCORE)
    return ones


def margins(values: Reals, labels: Labels) -> Reals:
    """(n,) by how much the value of the true class exceeds the largest other, from (n, classes)."""
    rows = np.arange(len(labels))
    others = values.copy()
    others[rows, labels] = -np.inf
    found: Reals = values[rows, labels] - others.max(axis=1)
    return found


def smoother(public: Features, targets: Features) -> Reals:
    """(targets, rows of U): kernel ridge regression on labels of U, evaluated at the targets.

    The attacker's student of the victim, in closed form: a target the victim memorised bends its labels on
    the rows of U nearby, and this adds them up.
    """
    scaling = Scaling.from_public(public)
    known, asked = scaling(public), scaling(targets)
    apart = _distances(known, known)
    width = np.median(apart[apart > 0]) / 2
    near = np.exp(-apart / width)
    weights: Reals = np.linalg.solve(
        near + _SMOOTHING * np.eye(len(near)), np.exp(-_distances(asked, known) / width).T
    ).T
    return weights


def _distances(left: Features, right: Features) -> Reals:
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None, :]
    found: Reals = np.maximum(squares - 2 * left @ right.T, 0.0)
    return found
