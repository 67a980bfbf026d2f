"""Federations that send more than votes: weights (FedAvg) and probabilities (distributed distillation, DD).

No session of the product can send either, so they train here; they are measured and never deployed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import nn

from experiments.data.scaling import Reals, Scaling
from silo_agent.trainer.methods.co_training import round_seed
from silo_agent.trainer.models.protocol import Features, Labelled, Labels
from silo_agent.trainer.models.torch_nets import perceptron


@dataclass(frozen=True)
class TrainingPlan:
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
class BaselineResult:
    """What the first silo sent in each round, and the trained networks."""

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
    plan: TrainingPlan,
    seed: int,
    targets: Labelled | None = None,
) -> BaselineResult:
    """FedAvg: every round starts from the mean of the weights of the round before."""
    scale = _scaling(public, plan)
    network = _network(public, classes, plan, seed)
    rows = [(scale(part.features), torch.as_tensor(part.labels)) for part in private]
    sent, margins = [], []
    for round_number in range(1, plan.rounds + 1):
        start = nn.utils.parameters_to_vector(network.parameters()).detach().clone()
        results = []
        for part in rows:
            _set(network, start)
            _train(network, _optimiser(network, plan), [part], plan, seed, round_number)
            results.append(nn.utils.parameters_to_vector(network.parameters()).detach().clone())
        sent.append(results[0].numpy())
        if targets is not None:
            _set(network, results[0])
            labels = torch.as_tensor(targets.labels)
            margins.append(_margins(network, scale(targets.features), labels))
        _set(network, torch.stack(results).mean(dim=0))
    return BaselineResult(tuple(sent), (), tuple(margins), (Network(network, scale),))


def shared_probabilities(
    private: tuple[Labelled, ...],
    public: Features,
    classes: int,
    plan: TrainingPlan,
    seed: int,
) -> BaselineResult:
    """Distributed distillation: as FedCT, but P has the mean of the silos' probabilities for labels."""
    scale = _scaling(public, plan)
    shared = scale(public)
    rows = [(scale(part.features), torch.as_tensor(part.labels)) for part in private]
    networks = [_network(public, classes, plan, seed) for _ in private]
    optimisers = [_optimiser(network, plan) for network in networks]
    sent: list[Reals] = []
    pseudo: torch.Tensor | None = None
    for round_number in range(1, plan.rounds + 1):
        outputs = []
        for network, optimiser, part in zip(networks, optimisers, rows, strict=True):
            sources = [part] if pseudo is None else [part, (shared, pseudo)]
            _train(network, optimiser, sources, plan, seed, round_number)
            with torch.inference_mode():
                outputs.append(torch.softmax(network(shared), dim=1))
        sent.append(outputs[0].numpy())
        pseudo = torch.stack(outputs).mean(dim=0).clone()
    final = tuple(Network(network, scale) for network in networks)
    return BaselineResult((), tuple(sent), (), final)


def _network(public: Features, classes: int, plan: TrainingPlan, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return perceptron(tuple(public.shape[1:]), plan.hidden, classes)


def _optimiser(network: nn.Module, plan: TrainingPlan) -> torch.optim.Optimizer:
    return torch.optim.Adam(network.parameters(), lr=plan.learning_rate)


def _train(
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    sources: list[tuple[torch.Tensor, torch.Tensor]],
    plan: TrainingPlan,
    seed: int,
    round_number: int,
) -> None:
    """Steps on rows of each source alike; labels are class indices, or probabilities."""
    draw = torch.Generator().manual_seed(round_seed(seed, round_number))
    for _ in range(plan.steps):
        losses = []
        for rows, labels in sources:
            chosen = torch.randint(len(rows), (plan.batch,), generator=draw)
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


def _scaling(public: Features, plan: TrainingPlan) -> Callable[[Features], torch.Tensor]:
    if plan.standardise:
        return partial(_as_tensor, Scaling.from_public(public))
    return partial(_as_tensor, np.asarray)


def _as_tensor(scaling: Callable[[Features], Features], rows: Features) -> torch.Tensor:
    return torch.as_tensor(scaling(rows).astype(np.float32))
