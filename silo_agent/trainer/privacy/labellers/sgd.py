"""The private labeller's head for torch: DP-SGD, with per-row gradients by Opacus and noise of our own.

A step: every patient is in it with probability `rate`, by exact coins; of each one row is drawn; its gradient is
clipped to Euclidean norm 1, cut to a grid towards zero (which lengthens no vector), summed in integers; integer
noise is added (`wire.privacy.noise`). All that follows (the expected number of patients as denominator, momentum,
the mean of the later weights) is computed from that sum and public numbers. Inputs are scaled by U alone; weights
begin at random; rate, steps and noise depend on n, which is public, and the budget.

Why `SampledGaussian` is right: fix what the coins say of everyone else. A step is then N(s, σ²) with probability
1 − q and N(s + u, σ²) with q, where |u| ≤ 1; a replaced patient has v for u. No pair (u, v) is worse than (−e, e),
which is what the accountant composes. For α ≥ 1 the excess of one over α times the other is, up to q, that of
N(u) over a mixture of N(0) and N(v): the mean of a convex function of a sum of two log-normals whose exponents have
variances |u|² and |v − u|², at most 1 and 4. Padding both to 1 and 4 with new coordinates is undone by projecting,
so it hides nothing; and of all sums with these marginals the comonotone one is the largest in convex order. That is
(−e, e). For α < 1 exchange the two.

One patient's gradient must not depend on another's row, not even in its last bits, or the sum could move by more
than 2. Matrix kernels may treat a row differently by its place and by the size of the batch, so batches have one
fixed size and a patient always has the same place in them, by a hash of the patient's number (`_batches`): whoever
else is there, and in whatever order the file has them. Coins and draws are made in secret for each patient apart, so
which of them is whose does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import torch
from opacus import GradSampleModule
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from silo_agent.trainer.models.places import places
from silo_agent.trainer.models.protocol import Features, Labelled
from silo_agent.trainer.models.torch_nets import convolutions, perceptron
from silo_agent.trainer.privacy.bounded import finite
from silo_agent.trainer.privacy.labellers.one_row import NO_ROW, one_row_each
from silo_agent.trainer.privacy.labellers.protocol import Probabilities
from silo_agent.trainer.privacy.labellers.usable_rows import usable_rows
from silo_agent.trainer.privacy.mechanisms.protocol import Scope
from silo_agent.trainer.privacy.settings import PrivateLabellerSettings
from wire.errors import ConfigurationError
from wire.privacy.accounting import calibrate
from wire.privacy.events import Event, Gaussian, SampledGaussian
from wire.privacy.noise import bernoulli, gaussian, uniform_below
from wire.privacy.randomness import Bits

STEPS: Final = 40
EXPECTED: Final = 1024
"""Patients in a step, on average; all of them where there are fewer."""
SLOWEST, FASTEST, CALM = 1.0, 4.0, 0.08
"""Learning rate: so that noise moves a weight by about CALM in a step, within these bounds."""
MOMENTUM: Final = 0.9
HIDDEN: Final = 16
CHANNELS: Final = (8, 16)
FARTHEST: Final = 5.0
"""Features are cut off at so many deviations of U."""
GRAINS: Final = 2**16
"""Grid points per unit of the clipped norm."""
PLACES: Final = 64
"""Size of a batch."""

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class PublicScale:
    """Zero mean and unit deviation as U has them: per column of a table, per channel of images."""

    mean: npt.NDArray[np.float64]
    deviation: npt.NDArray[np.float64]

    @classmethod
    def of(cls, public: Features) -> PublicScale:
        """Learned from U alone."""
        width = 1 if public.ndim == 3 else public.shape[-1]
        columns = finite(public).reshape(-1, width)
        return cls(columns.mean(axis=0), columns.std(axis=0))

    def __call__(self, rows: Features) -> Floats:
        """Rows of the same shape; what is constant on U is 0, what is far off is cut."""
        centred = finite(rows) - self.mean
        steady = self.deviation < 1e-8
        scaled = np.where(steady, 0.0, centred / np.where(steady, 1.0, self.deviation))
        return np.clip(scaled, -FARTHEST, FARTHEST).astype(np.float32)


@dataclass(frozen=True, eq=False)
class SgdHead:
    """A trained network as plain numbers, free of any device."""

    row_shape: tuple[int, ...]
    classes: int
    scale: PublicScale
    weights: Floats = field(repr=False)

    def probabilities(self, rows: Features, /) -> Probabilities:
        """(n, classes), each row adding up to 1."""
        network = _network(self.row_shape, self.classes)
        vector_to_parameters(torch.from_numpy(self.weights), network.parameters())
        scaled = torch.from_numpy(self.scale(rows))
        with torch.inference_mode():
            logits = torch.cat([network(part) for part in torch.split(scaled, 4096)])
        return np.asarray(logits.double().softmax(dim=1).numpy())


@dataclass(frozen=True)
class SgdTrainer:
    """DP-SGD with the noise already chosen."""

    units: int
    rate: float
    steps: int
    scale: float
    """Standard deviation of the noise, in units of the clipped norm."""

    @classmethod
    def for_scope(cls, settings: PrivateLabellerSettings, scope: Scope) -> Self:
        """The least noise whose training costs at most `scope.epsilon` at `scope.delta`."""
        if scope.epsilon is None:
            raise ConfigurationError(
                "The private labeller with head sgd chooses its noise from a budget, and silo.yaml sets none.",
                "Set privacy.epsilon in silo.yaml.",
            )
        rate, steps = min(1.0, EXPECTED / scope.units), settings.steps or STEPS
        scale = _calibrated(rate, steps, scope.epsilon, scope.delta)
        if scale is None:
            raise ConfigurationError(
                f"The private labeller with head sgd cannot add enough noise for ε = {scope.epsilon:g} at δ = {scope.delta:g}.",
                "Raise privacy.epsilon in silo.yaml.",
            )
        return cls(scope.units, rate, steps, scale)

    @property
    def learning_rate(self) -> float:
        """Slower the more noise there is for one patient."""
        return min(FASTEST, max(SLOWEST, CALM * self.rate * self.units / self.scale))

    @property
    def events(self) -> tuple[Event, ...]:
        """All steps; one patient's contribution to a step has norm 1 at most."""
        return _events(self.rate, self.steps, self.scale)

    @property
    def parameters(self) -> dict[str, object]:
        """For the ledger."""
        return {
            "head": "sgd",
            "steps": self.steps,
            "rate": self.rate,
            "clip": 1.0,
            "scale": self.scale,
            "learning_rate": self.learning_rate,
            "noise": f"rounded Gaussian on a grid of 1/{GRAINS} of the clipped norm, exact",
            "rows": "one per patient, drawn anew in every step",
        }

    def train(
        self,
        private: Labelled,
        patients: npt.NDArray[np.int64],
        public: Features,
        classes: int,
        bits: Bits,
    ) -> SgdHead:
        """Trains once; on the GPU if there is one, with coins, draws and noise made from `bits` on the CPU."""
        private, patients = usable_rows(private, patients, classes)
        scale, row_shape = PublicScale.of(public), public.shape[1:]
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        rows = torch.from_numpy(scale(private.features)).to(device)
        labels = torch.from_numpy(private.labels.astype(np.int64)).to(device)
        with _initial(bits):
            network = _network(row_shape, classes)
        gradients = ClippedGradients(network.to(device))
        weights = parameters_to_vector(network.parameters()).detach().cpu().double().numpy()
        seats = places(np.unique(patients), PLACES, "dp-sgd")
        speed, mean, counted = np.zeros_like(weights), np.zeros_like(weights), 0
        for step in range(self.steps):
            chosen = one_row_each(patients, self.units, bits)[0]
            present = bernoulli(self.rate, len(chosen), bits) & (chosen != NO_ROW)
            total = gradients.total(rows, labels, chosen, present, seats)
            noisy = total + gaussian(self.scale * GRAINS, len(total), bits)
            speed = MOMENTUM * speed + noisy / (GRAINS * self.rate * self.units)
            weights = weights - self.learning_rate * (1 - MOMENTUM) * speed
            vector_to_parameters(
                torch.from_numpy(weights.astype(np.float32)).to(device), network.parameters()
            )
            if 2 * step >= self.steps - 1:
                mean, counted = mean + weights, counted + 1
        return SgdHead(row_shape, classes, scale, (mean / counted).astype(np.float32))


def _events(rate: float, steps: int, scale: float) -> tuple[Event, ...]:
    if rate < 1:
        return (SampledGaussian(rate=rate, clip=1.0, scale=scale, steps=steps),)
    return (Gaussian(sensitivity=2.0, scale=scale, count=steps),)


def _calibrated(rate: float, steps: int, epsilon: float, delta: float) -> float | None:
    """The least noise for a budget; None if none in reach is enough."""
    whole = calibrate(lambda noise: _events(1.0, steps, noise), epsilon, delta, 0.05, 1e6)
    if whole is None or rate == 1:
        return whole
    # With fewer patients in a step less noise will do, but hardly less than their share of it. A narrow range
    # spares the accountant settings far over the budget, which are the slow ones.
    return calibrate(
        lambda noise: _events(rate, steps, noise),
        epsilon,
        delta,
        0.9 * rate * whole,
        whole,
        precision=5e-3,
    )


class ClippedGradients:
    """Sums of clipped per-row gradients of a network, in grains."""

    def __init__(self, network: nn.Module) -> None:
        self._network: Any = GradSampleModule(network, loss_reduction="sum")

    def total(
        self,
        rows: torch.Tensor,
        labels: torch.Tensor,
        chosen: Integers,
        present: npt.NDArray[np.bool_],
        seats: Integers,
    ) -> Integers:
        """(parameters,): the sum over those present of their gradient at the row chosen for them.

        `seats` are their places in batches, 0 … PLACES − 1.
        """
        parameters = list(self._network.parameters())
        total = torch.zeros(
            sum(parameter.numel() for parameter in parameters),
            dtype=torch.int64,
            device=rows.device,
        )
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
            for batch in _batches(present, seats):
                filled = torch.from_numpy(batch >= 0).to(rows.device)
                places = torch.from_numpy(chosen[np.maximum(batch, 0)]).to(rows.device)
                inputs = rows[places] * filled.view(-1, *(1,) * (rows.dim() - 1))
                inputs.requires_grad_()  # Else torch warns that Opacus' hooks have no input to watch.
                loss = nn.functional.cross_entropy(
                    self._network(inputs), labels[places] * filled, reduction="sum"
                )
                loss.backward()  # type: ignore[no-untyped-call]
                each = torch.cat([p.grad_sample.flatten(1) for p in parameters], dim=1)
                total += _on_grid(each)[filled].sum(dim=0)
                self._network.zero_grad(set_to_none=True)
        result: Integers = total.cpu().numpy()
        return result


def _on_grid(gradients: torch.Tensor) -> torch.Tensor:
    """Each row clipped to norm 1 and cut, towards zero, to whole grains; int64, never longer than GRAINS.

    What that does not hold of, whatever the reason, counts as none.
    """
    exact = gradients.double()
    length = torch.linalg.vector_norm(exact, dim=1, keepdim=True)
    # A gradient that overflowed counts as none. The last factor leaves room for the error of `length`.
    exact = torch.where(torch.isfinite(length), exact, 0.0)
    factor = GRAINS * (1 - 1e-9) / torch.where(torch.isfinite(length), length, 1.0).clamp(min=1.0)
    grains = torch.trunc(exact * factor)
    sound = torch.linalg.vector_norm(grains, dim=1, keepdim=True) <= GRAINS
    return torch.where(sound, grains, 0.0).to(torch.int64)


def _batches(present: npt.NDArray[np.bool_], seats: Integers) -> Integers:
    """(batches, PLACES): those present, each always in its own seat; −1 where a place is empty."""
    units = np.flatnonzero(present)
    place = seats[units]
    order = np.argsort(place, kind="stable")
    units, place = units[order], place[order]
    turn = np.arange(len(units)) - np.searchsorted(place, place)
    batches = np.full((int(turn.max(initial=-1)) + 1, PLACES), -1, dtype=np.int64)
    batches[turn, place] = units
    return batches


def _network(row_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Small, since noise grows with the number of weights; no layer mixes rows. Convolutions need some room."""
    if len(row_shape) > 1 and min(row_shape[:2]) >= 16:
        return convolutions(row_shape, CHANNELS, HIDDEN, classes)
    return perceptron(row_shape, (HIDDEN,), classes)


@contextmanager
def _initial(bits: Bits) -> Iterator[None]:
    """Within, torch draws initial weights from `bits`; they are no secret, so a seed of 63 bits will do."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(uniform_below(2**63, 1, bits)[0]))
        yield
