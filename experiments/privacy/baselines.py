"""Federations that send more than votes: weights (FedAvg) and probabilities (DD). Measured, never deployed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from silo_agent.models.protocol import Features, Labelled
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


@dataclass(frozen=True, eq=False)
class Networks:
    """What the first silo sent in each round."""

    weights: tuple[Reals, ...] = field(repr=False)
    """FedAvg: its flattened weights (d,) after local training; else empty."""
    probabilities: tuple[Reals, ...] = field(repr=False)
    """DD: (rows of U, classes); else empty."""
    margins: tuple[Reals, ...] = field(repr=False)
    """FedAvg: log-odds (n,) of the true class that its weights give `targets`; else empty."""


def averaged_weights(
    private: tuple[Labelled, ...],
    public: Features,
    classes: int,
    schooling: Schooling,
    seed: int,
    targets: Labelled,
) -> Networks:
    """FedAvg: every round starts from the mean of the weights of the round before."""
    scale = _scaling(public)
    network = _network(public, classes, schooling, seed)
    rows = [(scale(part.features), torch.as_tensor(part.labels)) for part in private]
    looked_at = (scale(targets.features), torch.as_tensor(targets.labels))
    sent, margins = [], []
    for number in range(1, schooling.rounds + 1):
        start = nn.utils.parameters_to_vector(network.parameters()).detach().clone()
        results = []
        for part in rows:
            _set(network, start)
            _train(network, _optimiser(network, schooling), [part], schooling, seed, number)
            results.append(nn.utils.parameters_to_vector(network.parameters()).detach().clone())
        _set(network, results[0])
        sent.append(results[0].numpy())
        margins.append(_margins(network, *looked_at))
        _set(network, torch.stack(results).mean(dim=0))
    return Networks(tuple(sent), (), tuple(margins))


def shared_probabilities(
    private: tuple[Labelled, ...],
    public: Features,
    classes: int,
    schooling: Schooling,
    seed: int,
) -> Networks:
    """Distributed distillation: as FedCT, but P has the mean of the silos' probabilities for labels."""
    scale = _scaling(public)
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
    return Networks((), tuple(sent), ())


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


def _scaling(public: Features) -> Any:
    """Zero mean and unit variance on U; what is constant there keeps its scale."""
    mean, deviation = public.mean(axis=0), public.std(axis=0)
    return partial(_scaled, mean=mean, deviation=np.where(deviation > 1e-8, deviation, 1.0))


def _scaled(rows: Features, mean: Reals, deviation: Reals) -> torch.Tensor:
    return torch.as_tensor(((rows - mean) / deviation).astype(np.float32))
