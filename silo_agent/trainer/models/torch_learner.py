"""A torch network that goes on learning: exact steps, half private and half pseudo-labelled."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from silo_agent.trainer.models.protocol import Features, Labelled, Labels, Problem
from wire.errors import ConfigurationError

ROWS_AT_ONCE = 4096


class Training(BaseModel):
    """How a network is trained; the defaults are FedCT's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learning_rate: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    private_batch: int = Field(default=64, ge=1)
    """Rows of D in every minibatch, drawn with replacement: a silo may have fewer than that."""
    pseudo_batch: int = Field(default=64, ge=1)
    """Rows of P in every minibatch once there is a P."""
    fit_steps: int = Field(default=1000, ge=1)
    """Minibatch steps of one `fit`; `advance` is told its own number."""
    standardise: bool = True
    device: Literal["auto", "cpu", "cuda"] = "auto"
    n_jobs: int = Field(default=1, ge=1)
    """CPU threads while training and predicting."""


class Standardise(nn.Module):
    """Zero mean and unit variance per feature (1-D rows), per channel or per image (images)."""

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, row_shape: tuple[int, ...]) -> None:
        super().__init__()
        width = 1 if len(row_shape) == 2 else row_shape[-1]
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))

    def learn(self, rows: torch.Tensor) -> None:
        """Takes mean and deviation from `rows`; what is constant there keeps its scale."""
        columns = rows.double().reshape(-1, self.mean.numel())
        deviation = columns.std(dim=0, correction=0)
        self.mean.copy_(columns.mean(dim=0))
        self.scale.copy_(torch.where(deviation > 1e-8, deviation, 1.0))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows in, rows of the same shape out."""
        return (rows - self.mean) / self.scale


@dataclass(frozen=True, eq=False)
class InitialWeights:
    """Public weights of a network's first layers, and the input scale they were trained with."""

    weights: tuple[NDArray[Any], ...]
    """In the order of the network's parameters, of which they are the first."""
    mean: NDArray[Any]
    scale: NDArray[Any]


class TorchLearner:
    """A continuing learner around the network that `make` builds: rows in, C logits out.

    The input scale is learned from the first rows it sees and then kept, so that later rounds
    continue the same function; with `InitialWeights` it is theirs. Pickles hold weights,
    optimiser and scale, free of any device.
    """

    _network: nn.Module
    _scale: Standardise
    _scaled: bool
    _optimiser: torch.optim.Optimizer

    def __init__(
        self,
        make: Callable[[], nn.Module],
        training: Training,
        problem: Problem,
        initial: InitialWeights | None = None,
    ) -> None:
        self._make = make
        self._training = training
        self._problem = problem
        self._initial = initial
        self._reset()

    def advance(self, private: Labelled, pseudo: Labelled | None, steps: int, seed: int) -> None:
        """Takes exactly `steps` Adam steps on minibatches of D and, unless empty, of P."""
        if len(private) == 0:
            raise ValueError("a learner needs at least one private row")
        sources = [(*self._tensors(private), self._training.private_batch)]
        if pseudo is not None and len(pseudo) > 0:
            sources.append((*self._tensors(pseudo), self._training.pseudo_batch))
        if not self._scaled and self._training.standardise:
            self._scale.learn(torch.cat([rows for rows, _, _ in sources]))
        self._scaled = True
        draw = torch.Generator().manual_seed(seed)
        with reproducible(self._training.n_jobs):
            self._network.train()
            for _ in range(steps):
                rows, labels = _minibatch(sources, draw)
                logits = self._network(self._scale(rows.to(self._device)))
                self._optimiser.zero_grad()
                loss = nn.functional.cross_entropy(logits, labels.to(self._device))
                torch.autograd.backward(loss)
                self._optimiser.step()

    def fit(self, X: Features, y: Labels, /) -> TorchLearner:
        """Starts anew from the seed and takes `fit_steps` steps on these rows alone."""
        self._reset()
        self.advance(Labelled(X, y), None, self._training.fit_steps, self._problem.seed)
        return self

    def copy_weights_from(self, other: object, /) -> bool:
        """Copies weights and input scale; returns False and changes nothing if the architecture differs."""
        if not isinstance(other, TorchLearner) or _architecture(self) != _architecture(other):
            return False
        self._network.load_state_dict(other._network.state_dict())
        self._scale.load_state_dict(other._scale.state_dict())
        self._scaled = other._scaled
        return True

    def predict(self, X: Features, /) -> Labels:
        """The class with the largest logit."""
        rows = torch.as_tensor(np.asarray(X, dtype=np.float32))
        with reproducible(self._training.n_jobs), torch.inference_mode():
            self._network.eval()
            chosen = [
                self._network(self._scale(part.to(self._device))).argmax(dim=1).cpu()
                for part in torch.split(rows, ROWS_AT_ONCE)
            ]
        labels: Labels = torch.cat(chosen).numpy().astype(np.int64)
        return labels

    def __getstate__(self) -> dict[str, Any]:
        state = io.BytesIO()
        torch.save({name: part.state_dict() for name, part in self._parts().items()}, state)
        return {
            "make": self._make,
            "training": self._training,
            "problem": self._problem,
            "start": self._initial,
            "scaled": self._scaled,
            "state": state.getvalue(),
        }

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self._make = saved["make"]
        self._training = saved["training"]
        self._problem = saved["problem"]
        # Learners kept before there were extractors have none.
        self._initial = saved.get("start")
        self._reset()
        self._scaled = saved["scaled"]
        # The machine that goes on may lack the GPU of the one that stopped.
        state = torch.load(io.BytesIO(saved["state"]), map_location="cpu", weights_only=True)
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def _reset(self) -> None:
        self._device = device_named(self._training.device)
        # Only the CPU generator is seeded, and put back afterwards: `torch.manual_seed` would also
        # make every GPU's randomness predictable for whoever draws noise there.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self._problem.seed)
            self._network = self._make()
        self._scale = Standardise(self._problem.row_shape)
        self._scaled = self._initial is not None
        if self._initial is not None:
            _load_initial(self._initial, self._network, self._scale)
        self._network.to(self._device)
        self._scale.to(self._device)
        self._optimiser = torch.optim.Adam(
            self._network.parameters(),
            lr=self._training.learning_rate,
            weight_decay=self._training.weight_decay,
        )

    def _parts(self) -> dict[str, nn.Module | torch.optim.Optimizer]:
        return {"network": self._network, "scale": self._scale, "optimiser": self._optimiser}

    def _tensors(self, data: Labelled) -> tuple[torch.Tensor, torch.Tensor]:
        if data.labels.min() < 0 or data.labels.max() >= self._problem.classes:
            raise ValueError(f"labels must lie in 0..{self._problem.classes - 1}")
        return (
            torch.as_tensor(np.asarray(data.features, dtype=np.float32)),
            torch.as_tensor(np.asarray(data.labels, dtype=np.int64)),
        )


def _minibatch(
    sources: Sequence[tuple[torch.Tensor, torch.Tensor, int]], draw: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and labels drawn with replacement: of each source as many as its third entry says."""
    batch = []
    for rows, labels, size in sources:
        chosen = torch.randint(len(rows), (size,), generator=draw)
        batch.append((rows[chosen], labels[chosen]))
    rows_of, labels_of = zip(*batch, strict=True)
    return torch.cat(rows_of), torch.cat(labels_of)


def _architecture(learner: TorchLearner) -> list[tuple[str, torch.Size]]:
    parts = (learner._network, learner._scale)
    return [(name, part.shape) for one in parts for name, part in one.state_dict().items()]


def _load_initial(initial: InitialWeights, network: nn.Module, scale: Standardise) -> None:
    first = islice(network.parameters(), len(initial.weights))
    with torch.no_grad():
        for parameter, weight in zip(first, initial.weights, strict=True):
            parameter.copy_(torch.tensor(weight))
        scale.mean.copy_(torch.tensor(initial.mean))
        scale.scale.copy_(torch.tensor(initial.scale))


def device_named(wanted: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """The device a person asked for; `auto` is the GPU where there is one."""
    present = torch.cuda.is_available()
    if wanted == "cuda" and not present:
        raise ConfigurationError(
            "The learner asks for device cuda, and torch finds no GPU.",
            "Set device to auto, or check the driver and that the container is given the GPU.",
        )
    return torch.device("cuda" if present and wanted != "cpu" else "cpu")


@contextmanager
def reproducible(threads: int) -> Iterator[None]:
    """`threads` CPU threads, and only those GPU kernels that add up in a fixed order."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
            yield
    finally:
        torch.set_num_threads(before)
