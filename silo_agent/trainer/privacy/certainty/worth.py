"""What a silo's certainties are worth at an ε, before anything is trained: how much of them noise leaves, at best.

Without the silo's rows the minimiser would be near 0, for features are centred as U is. There each row pulls with half
its length (`certainty_model`: σ(0) = ½), so by strong convexity n patients move it by at most n/(2λN), and by that
much only if all their rows are one and the same point at the edge. The noise has length mc√d/(λN): m its multiplier,
c the diameter. λ and N cancel. Signal to noise is therefore at most n / (2mc√d), and over rows that scatter alike in
all directions, noisy scores correlate with noise-free ones at most by r/√(1 + r²).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from silo_agent.trainer.privacy.certainty.model import CertaintyPlan, diameter
from silo_agent.trainer.privacy.settings import CertaintySettings
from wire.privacy.accounting import epsilon
from wire.privacy.events import Gaussian
from wire.task.methods import FedauxPolicy

TELLING: Final = 0.5
"""A correlation below which scores are called pure noise, for this is what they have at best."""


@dataclass(frozen=True)
class CertaintyWorth:
    """Of certainties with given noise, for a silo of given size."""

    settings: CertaintySettings
    units: int
    """Patients (or rows)."""
    features: int
    """d: how many numbers the task's extractor makes of a row."""
    regularisation: float = FedauxPolicy().regularisation

    @property
    def signal_to_noise(self) -> float:
        """Length of the noise-free weights over that of the noise, at most."""
        return self.units / self._noise_of_one

    @property
    def correlation(self) -> float:
        """Of noisy and noise-free scores, at most."""
        ratio = self.signal_to_noise
        return ratio / math.hypot(1.0, ratio)

    @property
    def noise_only(self) -> bool:
        """True if they are not worth what they cost."""
        return self.correlation < TELLING

    @property
    def enough_units(self) -> int:
        """Patients from which on they may be more than noise at this ε."""
        return math.ceil(_TELLING_RATIO * self._noise_of_one)

    @property
    def enough_epsilon(self) -> float:
        """ε from which on they may be more than noise with so many patients, at the same δ."""
        noise = self.units / (_TELLING_RATIO * 2 * self._spread)
        return epsilon([Gaussian(sensitivity=1.0, scale=noise)], self.settings.delta)

    @property
    def sentence(self) -> str:
        """For a person."""
        text = (
            f"Certainties (FEDAUX) at ε = {self.settings.epsilon:g}, δ = {self.settings.delta:g} are pure noise below "
            f"{self.enough_units} patients with {self.features} features"
        )
        if not self.noise_only:
            return (
                f"{text}. With {self.units} they correlate by at most {self.correlation:.2f} with what they "
                "would be without noise."
            )
        return (
            f"{text}, and there are {self.units}: they correlate by at most {self.correlation:.2f} with what they "
            f"would be without noise. That takes ε = {self.enough_epsilon:.2g}, more patients or fewer features; "
            "as it is, votes count nearly alike."
        )

    def as_json(self) -> dict[str, object]:
        """For scripts."""
        return {
            "epsilon": self.settings.epsilon,
            "delta": self.settings.delta,
            "correlation_at_most": self.correlation,
            "signal_to_noise_at_most": self.signal_to_noise,
            "noise_only": self.noise_only,
            "enough_patients": self.enough_units,
            "enough_epsilon": self.enough_epsilon,
            "sentence": self.sentence,
        }

    @property
    def _spread(self) -> float:
        return diameter(self.regularisation) * math.sqrt(self.features)

    @property
    def _noise_of_one(self) -> float:
        """Length of the noise over how far one patient can move the weights."""
        plan = CertaintyPlan.calibrated(self.settings, self.units, 1, self.regularisation)
        return 2 * plan.multiplier * self._spread


_TELLING_RATIO: Final = TELLING / math.sqrt(1 - TELLING**2)
