"""Membership inference from what a silo sent, against shadow federations the attacker ran himself.

The attacker knows everything but which of n candidate rows ("targets") the victim holds. He runs the same
federation with memberships he draws himself (shadows), then sees a victim's messages. Three attacks:

threshold   one scalar per target, large where the messages fit the target's label; no shadows.
likelihood  LiRA: that scalar per round, its Gaussian with and without the target fitted over the shadows,
            separately for every target; the score is the logarithm of their ratio.
regression  the messages as one vector, membership of every target regressed on it over the shadows (ridge,
            its strength chosen by leave-one-out on the shadows).

Victims are federations of their own and never shadows, and their memberships are drawn independently. So a
score that carries nothing has AUC ½ in expectation, and given the shadows the victims are independent: they,
not the single targets, are what the bootstrap draws.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from experiments.data.scaling import Reals

Members = npt.NDArray[np.bool_]

_SHRINKAGE: Final = 0.25
"""How much of a target's covariance over the rounds is taken from the mean over all targets."""
_RIDGES: Final = np.logspace(-4, 4, 17)
_LOW_RATE: Final = 0.01


@dataclass(frozen=True, eq=False)
class Evidence:
    """What F federations said. `messages` may hold anything linear models can use."""

    members: Members = field(repr=False)
    """(F, targets): whether the victim held the target."""
    statistics: Reals = field(repr=False)
    """(F, targets, rounds): how well the messages fit the target's label."""
    messages: Reals = field(repr=False)
    """(F, d): everything the victim sent."""

    def part(self, which: slice) -> Evidence:
        """Some of the federations."""
        return Evidence(self.members[which], self.statistics[which], self.messages[which])


@dataclass(frozen=True)
class Finding:
    """How well an attack tells members from others; `deviation` is the standard error of `auc`."""

    auc: float
    deviation: float
    low_rate: float
    """True positives at 1 % false positives."""


def threshold(victims: Evidence) -> Reals:
    """(F, targets) scores without any shadow: the mean statistic of the rounds."""
    scores: Reals = victims.statistics.mean(axis=2)
    return scores


def likelihood(shadows: Evidence, victims: Evidence) -> Reals:
    """(F, targets) log-likelihood ratios of each victim's statistics, in against out."""
    inside = _gaussians(shadows.statistics, shadows.members)
    outside = _gaussians(shadows.statistics, ~shadows.members)
    return _log_density(victims.statistics, *inside) - _log_density(victims.statistics, *outside)


def regression(shadows: Evidence, victims: Evidence) -> Reals:
    """(F, targets) predicted memberships, from the whole of the messages."""
    centre = shadows.messages.mean(axis=0)
    known, seen = shadows.messages - centre, victims.messages - centre
    values, vectors = np.linalg.eigh(known @ known.T)
    values = np.maximum(values, 0.0)
    scale = values.mean() or 1.0
    share = shadows.members.mean(axis=0)
    wanted = vectors.T @ (shadows.members - share)
    errors = []
    for ridge in _RIDGES:
        kept = values / (values + ridge * scale)
        fitted = vectors @ (kept[:, None] * wanted)
        leverage = (vectors**2) @ kept + 1 / len(known)
        left_out = (shadows.members - share - fitted) / (1 - np.minimum(leverage, 0.999))[:, None]
        errors.append(float(np.mean(left_out**2)))
    ridge = _RIDGES[int(np.argmin(errors))]
    dual = vectors @ (wanted / (values + ridge * scale)[:, None])
    scores: Reals = (seen @ known.T) @ dual
    return scores


def finding(scores: Reals, members: Members, seed: int, draws: int = 500) -> Finding:
    """AUC over all victims and targets, its deviation by drawing whole victims again, and the low rate."""
    draw = np.random.default_rng(seed)
    again = [
        auc(scores[chosen], members[chosen])
        for chosen in draw.integers(0, len(scores), size=(draws, len(scores)))
    ]
    cut = np.quantile(scores[~members], 1 - _LOW_RATE, method="higher")
    return Finding(
        auc(scores, members), float(np.std(again, ddof=1)), float(np.mean(scores[members] > cut))
    )


def auc(scores: Reals, members: Members) -> float:
    """Probability that a member's score is above another's; a tie counts half."""
    ranks = rankdata(scores.ravel())
    inside = members.ravel()
    count = int(inside.sum())
    others = inside.size - count
    above = float(ranks[inside].sum()) - count * (count + 1) / 2
    return above / (count * others)


def most_allowed(epsilon: float, delta: float) -> float:
    """The largest AUC any attack on an (ε, δ)-private release can have: the area above its trade-off."""
    if np.isinf(epsilon):
        return 1.0
    # Two lines bound it: tpr ≤ δ + e^ε fpr, and its mirror image; they meet on the diagonal fpr = 1 − tpr.
    meeting = (1 - delta) / (1 + np.exp(epsilon))
    corners = [(0.0, delta), (meeting, 1 - meeting), (1 - delta, 1.0), (1.0, 1.0)]
    fpr, tpr = zip(*corners, strict=True)
    return float(np.trapezoid(tpr, fpr))


def _gaussians(statistics: Reals, chosen: Members) -> tuple[Reals, Reals]:
    """Mean (targets, rounds) and covariance (targets, rounds, rounds) over the chosen federations."""
    weights = chosen.astype(float)[:, :, None]
    counts = np.maximum(weights.sum(axis=0), 2.0)
    means = (weights * statistics).sum(axis=0) / counts
    apart = weights * (statistics - means)
    spreads = np.einsum("ftr,fts->trs", apart, apart) / (counts[:, :, None] - 1)
    shared = spreads.mean(axis=0)
    floor = (1e-6 * np.trace(shared) / len(shared) + 1e-12) * np.eye(len(shared))
    return means, (1 - _SHRINKAGE) * spreads + _SHRINKAGE * shared + floor


def _log_density(statistics: Reals, means: Reals, spreads: Reals) -> Reals:
    apart = statistics - means
    solved = np.linalg.solve(spreads[None], apart[..., None])[..., 0]
    distances = (apart * solved).sum(axis=2)
    density: Reals = -0.5 * (distances + np.linalg.slogdet(spreads)[1])
    return density
