"""From noisy weights to the four bits a ballot has room for. Post-processing: nothing private is looked at here.

A score is a power of the odds s/(1 − s) = exp⟨w, x⟩ of the paper's certainty s, not s itself. For a model that tells the
silo's rows from U's, the odds at x are the ratio of the two densities; U's is the same for every silo, so weights in
that ratio are the ones that domain adaptation asks for (Mansour et al. 2008), of which s is only a rough copy: with
λ = 0.1 it stays near ½ and ten silos that do not know a class outvote the one that does. λ also holds the odds
down, by about 1/λ where it is large; the power, a public constant for a task, undoes that.

All silos share one scale, so scores can be compared: 4 where the model knows nothing (w = 0), up to 15, down to 1 and
never 0, for a vote no one else casts should still count. Ranks within a silo would make a silo whose weights are
nothing but noise as loud as any other.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from silo_agent.trainer.privacy.bounded import Floats
from silo_agent.trainer.privacy.mechanisms.protocol import Scores
from wire.ballot import BEST_SCORE

UNINFORMED: Final = 4
"""The score of a row of which the model knows nothing: as many times above 1 as 15 is above it, about."""
GAIN: Final = 80.0
"""The power is this times λ, and 1 at least. Chosen on FashionMNIST (docs/certainty.md); 40 to 160 differ little."""


def shrunk(noisy: Floats, scale: float, longest: float) -> Floats:
    """Weights less what is known to be noise: hardly any are left where noise explains all of them.

    ‖noisy‖² is ‖w‖² + dσ² on average, and of that ‖w‖² is the part to keep (James and Stein 1961). With much noise this
    estimate of the part is itself noise; but it cannot be more than it would be for the `longest` w a silo of this size
    can have. So a silo too small for its ε votes nearly like one without certainties.
    """
    length, noise = float(noisy @ noisy), len(noisy) * scale**2
    if length <= noise:
        return np.zeros_like(noisy)
    return noisy * min(1 - noise / length, longest**2 / (longest**2 + noise))


def scores(rows: Floats, weights: Floats, regularisation: float) -> Scores:
    """(n,) 1 to 15 for rows of norm ≤ 1."""
    power = max(1.0, GAIN * regularisation)
    logarithm = np.clip(power * (rows @ weights), -math.log(1e3), math.log(1e3))
    steps = np.clip(np.rint(UNINFORMED * np.exp(logarithm)), 1, BEST_SCORE)
    return np.asarray(steps, dtype=np.uint8)
