"""FEDAUX's certainty model: a logistic regression that tells a silo's rows from public ones, released with noise.

    J(w) = 1/N · [ Σ over patients, mean over their rows, ℓ(−⟨w, x⟩)  +  Σ over D⁻, ℓ(⟨w, x⟩) ]  +  λ/2 ‖w‖²

with ℓ(z) = ln(1 + eᶻ), N = patients + |D⁻| and ‖x‖ ≤ 1. There is no intercept: nothing would bound it.

How far replacing a patient moves the minimiser. Let w′ be that of the neighbour; ∇J′(w′) = 0, so that ∇J(w′) is what
the two patients' terms differ by. J is λ-strongly convex, hence ‖w − w′‖ ≤ ‖∇J(w′)‖ / λ = ‖g − g′‖ / (λN), where g is
the mean over the patient's rows of −σ(−⟨w′, x⟩)·x. Such a mean lies in the convex hull of S = {σ(−⟨w′, x⟩)x : ‖x‖ ≤ 1},
so ‖g − g′‖ is at most S's diameter, however many rows either patient has. That is 2 in the papers (|σ| ≤ 1) and less in
truth: at a minimiser 0 = ⟨w, ∇J(w)⟩ gives λ‖w‖² = mean of z·σ(−z) over z = ±⟨w, x⟩, which never exceeds
W = max zσ(−z) = 0.2785, so ‖w‖ ≤ √(W/λ), and `diameter` is that of S for the worst w so short: 1.22 at λ = 0.1.

What is released is not quite the minimiser. One whose gradient is at most τ = SLACK/N is within τ/λ of it: the
sensitivity grows by 2τ/λ. Rounding to the grid moves each of d coordinates by half a grain, two neighbours by √d grains
at most: the grid is so fine that this is GRID of the sensitivity. Float errors, 10⁻¹² of a gradient, are far below τ,
and that no cut row is longer than 1 but for its last bits is far below the margin in `diameter`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from silo_agent.trainer.privacy.bounded import Floats
from silo_agent.trainer.privacy.settings import CertaintySettings
from wire.privacy.accounting import calibrate
from wire.privacy.events import Event, Gaussian
from wire.privacy.noise import gaussian
from wire.privacy.randomness import Bits

SLACK: Final = 1e-4
"""Norm of the gradient of N·J at which a minimiser is good enough."""
GRID: Final = 2.0**-10
"""Share of the sensitivity that rounding to the grid may add."""
_TURN: Final = 1.2784645427610738
"""z that maximises z·σ(−z)."""
_LARGEST_PULL: Final = 0.2784645427610738
"""W, that maximum: Lambert's W at 1/e."""
_ANGLES: Final = 384
_LENGTHS: Final = 64
_STEPS: Final = 500
_SHORTEST: Final = 1e-9
"""Of Newton's step: below this, floats and not the direction keep the gradient from shrinking."""


@lru_cache(maxsize=32)
def diameter(regularisation: float) -> float:
    """The largest ‖g − g′‖ two patients can have at any minimiser; never above 2.

    S is a body of revolution around w: at the angle θ from −w it reaches ρ(θ) = max over r ≤ 1 of r·σ(r‖w‖cos θ), and
    two points are furthest apart on opposite sides of the axis. Angles and ‖w‖ are tried on a grid and what may
    lie between is added: |dρ/dθ| ≤ ‖w‖/4 and ρ ≤ 1, so a point moves by at most √(1 + ‖w‖²/16) per angle; and by at
    most ¼ per unit of ‖w‖.
    """
    longest = longest_weights(regularisation)
    angles = np.linspace(0, math.pi, _ANGLES)
    widest = 0.0
    for length in np.linspace(0, longest, _LENGTHS):
        pull = length * np.cos(angles)
        inside = np.minimum(1.0, _TURN / np.maximum(-pull, _TURN))
        reach = inside * expit(inside * pull)
        along, across = reach * np.cos(angles), reach * np.sin(angles)
        squares = (along[:, None] - along) ** 2 + (across[:, None] + across) ** 2
        widest = max(widest, math.sqrt(float(squares.max())))
    between_angles = math.pi / (_ANGLES - 1) * math.sqrt(1 + longest**2 / 16)
    between_lengths = longest / (_LENGTHS - 1) / 4
    return min(2.0, widest + between_angles + between_lengths)


def longest_weights(regularisation: float) -> float:
    """What no minimiser is longer than, whatever the rows are."""
    return math.sqrt(_LARGEST_PULL / regularisation)


@dataclass(frozen=True)
class CertaintyPlan:
    """Everything chosen before a private row is seen."""

    units: int
    """Patients (or rows)."""
    negatives: int
    """|D⁻|."""
    regularisation: float
    """λ."""
    multiplier: float
    """Standard deviation of the noise in sensitivities."""

    @classmethod
    def calibrated(
        cls, settings: CertaintySettings, units: int, negatives: int, regularisation: float
    ) -> CertaintyPlan:
        """The least noise with which the weights are (ε, δ)-private as silo.yaml says; exact, not the textbook's."""
        # To know where to look: the textbook's noise is too much for small ε; ε is above 1/(2 noise²) for large ones.
        textbook = math.sqrt(2 * math.log(1.25 / settings.delta)) / settings.epsilon
        found = calibrate(
            lambda noise: [Gaussian(sensitivity=1.0, scale=noise)],
            settings.epsilon,
            settings.delta,
            max(textbook / 256, 0.5 / math.sqrt(2 * settings.epsilon)),
            textbook * 4 * max(1.0, math.sqrt(settings.epsilon)),
            precision=1e-4,
        )
        if found is None:
            raise ValueError(f"no noise makes certainties private for ε = {settings.epsilon:g}")
        return cls(units, negatives, regularisation, found)

    @property
    def sensitivity(self) -> float:
        """How far replacing one patient moves the rounded weights, at most."""
        exact = (diameter(self.regularisation) + 2 * SLACK) / (self.regularisation * self._total)
        return exact * (1 + GRID)

    @property
    def scale(self) -> float:
        """Standard deviation of the noise on each weight."""
        return self.multiplier * self.sensitivity

    @property
    def longest(self) -> float:
        """About the longest weights that so many rows can make: each pulls with half its length at first."""
        pulled = self.units / (2 * self.regularisation * self._total)
        return min(longest_weights(self.regularisation), pulled)

    @property
    def events(self) -> tuple[Event, ...]:
        """One answer, a vector, with Gaussian noise."""
        return (Gaussian(sensitivity=self.sensitivity, scale=self.scale),)

    def train(
        self, own: Floats, patients: npt.NDArray[np.int64], public: Floats, bits: Bits
    ) -> Floats:
        """(d,) noisy weights from rows of norm ≤ 1: the silo's, whose patients are named, and D⁻."""
        exact = minimiser(own, shares(patients), public, self.regularisation, self._total)
        width = len(exact)
        # A power of two: the grid depends on nothing but the plan and the number of features.
        grains = 2.0 ** math.ceil(math.log2(math.sqrt(width) / (GRID * self.sensitivity)))
        noise = gaussian(self.scale * grains, width, bits)
        return np.asarray((np.rint(exact * grains) + noise) / grains)

    @property
    def _total(self) -> int:
        return self.units + self.negatives


def papers_scale(epsilon: float, delta: float, regularisation: float, total: int) -> float:
    """σ by the papers' formula √(8 ln(1.25/δ)) / (ελN), for comparison only: it is proved for ε < 1."""
    return math.sqrt(8 * math.log(1.25 / delta)) / (epsilon * regularisation * total)


def shares(patients: npt.NDArray[np.int64]) -> Floats:
    """(n,) what a row counts, so that the rows of one patient count 1 together."""
    _, numbers, counts = np.unique(patients, return_inverse=True, return_counts=True)
    return np.asarray(1.0 / counts[numbers])


def minimiser(
    own: Floats, counting: Floats, public: Floats, regularisation: float, total: int
) -> Floats:
    """(d,) the minimiser of J, up to a gradient of SLACK / (2N), which is checked; the other half is the floats'."""
    rows = np.concatenate([own, -public])
    weighing = np.concatenate([counting, np.ones(len(public))]) / total
    weights = np.zeros(rows.shape[1])

    def slope(at: Floats) -> Floats:
        return np.asarray(
            regularisation * at - rows.T @ (weighing * expit(-(rows @ at))), dtype=np.float64
        )

    gradient = slope(weights)
    for _ in range(_STEPS):
        if np.linalg.norm(gradient) <= SLACK / (2 * total):
            return weights
        doubt = expit(-(rows @ weights))
        curvature = (rows.T * (weighing * doubt * (1 - doubt))) @ rows
        curvature[np.diag_indices_from(curvature)] += regularisation
        step = np.linalg.solve(curvature, gradient)
        # Along Newton's direction the gradient shrinks at first, so some part of the step always helps.
        part = 1.0
        while part > _SHORTEST and not np.linalg.norm(
            slope(weights - part * step)
        ) < np.linalg.norm(gradient):
            part /= 2
        weights = weights - part * step
        gradient = slope(weights)
    raise RuntimeError("the certainty model did not converge")
