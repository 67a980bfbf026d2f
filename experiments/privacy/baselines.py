"""Federations that send more than votes: weights (FedAvg) and probabilities (DD). Measured, never deployed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from silo_agent.models.protocol import Features, Labelled, Labels
from silo_agent.models.torch_nets import perceptron
from silo_agent.trainer.fedct import round_seed

Reals = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Schooling:
    """How every silo trains, whatever it sends: Adam on minibatches drawn with replacement."""

    hidden: tuple[int, ...] = (64,)
    rounds: int = 5
    steps: int = 100
    """Minibatch steps between two messages."""
    batch: int = 64
    """Rows of D in a minibatch, and as many of P."""
    learning_rate: float = 1e-3
    standardise: bool = True
    """Whether rows are scaled by the mean and deviation of U."""


@dataclass(frozen=True, eq=False)
class Network:
    """A trained network and the scale of its rows."""

    module: nn.Module = field(repr=False)
    scale: Callable[[Features], torch.Tensor] = field(repr=False)

    def predict(self, X: Features, /) -> Labels:
        """The class with the largest logit."""
        with torch.inference_mode():
            labels: Labels = self.module(self.scale(X)).argmax(dim=1).numpy().astype(np.int64)
        return labels


@dataclass(frozen=True, eq=False)
class Networks:
    """What the first silo sent in each round."""

    weights: tuple[Reals, ...] = field(repr=False)
    """FedAvg: its flattened weights (d,) after local training; else empty."""
    probabilities: tuple[Reals, ...] = field(repr=False)
    """DD: (rows of U, classes); else empty."""
    margins: tuple[Reals, ...] = field(repr=False)
    """FedAvg: log-odds (n,) of the true class that its weights give `targets`; else empty."""
    final: tuple[Network, ...] = field(repr=False)
    """What everybody has at the end: FedAvg's one, DD's one per silo."""


def averaged_weights(
    private: tuple[Labelled, ...],
    public: Features,
    classes: int,
    schooling: Schooling,
    seed: int,
    targets: Labelled | None = None,
) -> Networks:
    """FedAvg: every round starts from the mean of the weights of the round before."""
    scale = _scaling(public, schooling)
    network = _network(public, classes, schooling, seed)
    rows = [(scale(part.features), torch.as_tensor(part.labels)) for part in private]
    sent, margins = [], []
    for number in range(1, schooling.rounds + 1):
        start = nn.utils.parameters_to_vector(network.parameters()).detach().clone()
        results = []
        for part in rows:
            _set(network, start)
            _train(network, _optimiser(network, schooling), [part], schooling, seed, number)
            results.append(nn.utils.parameters_to_vector(network.parameters()).detach().clone())
        sent.append(results[0].numpy())
        if targets is not None:
            _set(network, results[0])
            looked_at = (scale(targets.features), torch.as_tensor(targets.labels))
            margins.append(_margins(network, *looked_at))
        _set(network, torch.stack(results).mean(dim=0))
    return Networks(tuple(sent), (), tuple(margins), (Network(network, scale),))


def shared_probabilities(
    private: tuple[Labelled, ...],
    public: Features,
    classes: int,
    schooling: Schooling,
    seed: int,
) -> Networks:
    """Distributed distillation: as FedCT, but P has the mean of the silos' probabilities for labels."""
    scale = _scaling(public, schooling)
    shared = scale(public)
    rows = [(scale(part.features), torch.as_tensor(part.labels)) for part in private]
    networks = [_network(public, classes, schooling, seed) for _ in private]
    optimisers = [_optimiser(network, schooling) for network in networks]
    sent: list[Reals] = []
    pseudo: torch.Tensor | None = None
    for number in range(1, schooling.rounds + 1):
        said = []
        for network, optimiser, part in zip(networks, optimisers, rows, strict=True):
            sources = [part] if pseudo is None else [part, (shared, pseudo)]
            _train(network, optimiser, sources, schooling, seed, number)
            with torch.inference_mode():
                said.append(torch.softmax(network(shared), dim=1))
        sent.append(said[0].numpy())
        pseudo = torch.stack(said).mean(dim=0).clone()
    final = tuple(Network(network, scale) for network in networks)
    return Networks((), tuple(sent), (), final)


def _network(public: Features, classes: int, schooling: Schooling, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return perceptron(tuple(public.shape[1:]), schooling.hidden, classes)


def _optimiser(network: nn.Module, schooling: Schooling) -> torch.optim.Optimizer:
    return torch.optim.Adam(network.parameters(), lr=schooling.learning_rate)


def _train(
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    sources: list[tuple[torch.Tensor, torch.Tensor]],
    schooling: Schooling,
    seed: int,
    number: int,
) -> None:
    """Steps on rows of each source alike; labels are class indices, or probabilities."""
    draw = torch.Generator().manual_seed(round_seed(seed, number))
    for _ in range(schooling.steps):
        losses = []
        for rows, labels in sources:
            chosen = torch.randint(len(rows), (schooling.batch,), generator=draw)
            losses.append(nn.functional.cross_entropy(network(rows[chosen]), labels[chosen]))
        optimiser.zero_grad()
        torch.autograd.backward(torch.stack(losses).mean())
        optimiser.step()


def _set(network: nn.Module, weights: torch.Tensor) -> None:
    nn.utils.vector_to_parameters(weights.clone(), network.parameters())


def _margins(network: nn.Module, rows: torch.Tensor, labels: torch.Tensor) -> Reals:
    with torch.inference_mode():
        logits = network(rows).double()
    own = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -torch.inf).logsumexp(dim=1)
    margins: Reals = (own - others).numpy()
    return margins


def _scaling(public: Features, schooling: Schooling) -> Callable[[Features], torch.Tensor]:
    """Zero mean and unit variance on U; what is constant there keeps its scale. Or rows as they are."""
    if not schooling.standardise:
        return partial(_scaled, mean=np.zeros(1, np.float32), deviation=np.ones(1, np.float32))
    mean, deviation = public.mean(axis=0), public.std(axis=0)
    return partial(_scaled, mean=mean, deviation=np.where(deviation > 1e-8, deviation, 1.0))


def _scaled(rows: Features, mean: Reals, deviation: Reals) -> torch.Tensor:
    return torch.as_tensor(((rows - mean) / deviation).astype(np.float32))
