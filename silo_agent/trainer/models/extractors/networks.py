"""Extractors that are the first layers of a torch learner, so that the learner can start from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from silo_agent.trainer.models.extractors.linear import standardised
from silo_agent.trainer.models.protocol import Features
from silo_agent.trainer.models.torch_learner import device_named, reproducible
from silo_agent.trainer.models.torch_nets import convolution_trunk, perceptron_trunk
from wire.extractor_file import Array, ExtractorFile, ExtractorHeader, ExtractorKind

OnStep = Callable[[int, int, float], None]
"""Told after a step: how many are done, how many there are, and the loss."""


def trunk(header: ExtractorHeader) -> nn.Sequential:
    """The network of `header`, its weights drawn at random."""
    if header.kind is ExtractorKind.CONTRASTIVE:
        return convolution_trunk(header.row_shape, header.widths, header.dimensions)
    return perceptron_trunk(header.row_shape, (*header.widths, header.dimensions))


def weights_of(header: ExtractorHeader, network: nn.Module) -> dict[str, Array]:
    """The network's weights under the names they have in the file."""
    names = [stored.name for stored in header.layout if stored.name not in ("mean", "scale")]
    return {
        name: parameter.detach().cpu().numpy()
        for name, parameter in zip(names, network.parameters(), strict=True)
    }


def forward(file: ExtractorFile) -> Callable[[Features], Features]:
    """What the network makes of rows (n, …), on the CPU: the same numbers with and without a GPU."""
    header = file.header
    with torch.random.fork_rng(devices=[]):
        network = trunk(header).eval()
    stored = [file.arrays[name] for name in weights_of(header, network)]
    with torch.no_grad():
        for parameter, weight in zip(network.parameters(), stored, strict=True):
            parameter.copy_(torch.tensor(weight))

    def apply(rows: Features) -> Features:
        with torch.inference_mode():
            scaled = scale(header, rows, file.arrays["mean"], file.arrays["scale"])
            vectors: Features = network(torch.as_tensor(scaled)).numpy()
        return vectors

    return apply


def scale(header: ExtractorHeader, rows: Features, mean: Array, deviation: Array) -> Features:
    """Rows as the network reads them, float32: images per channel, other rows per element."""
    if header.kind is ExtractorKind.CONTRASTIVE:
        return np.asarray((rows - mean) / deviation, dtype=np.float32)
    flat = rows.reshape(len(rows), -1)
    return np.asarray(standardised(flat, mean, deviation), dtype=np.float32)


@contextmanager
def seeded(seed: int) -> Iterator[tuple[torch.device, torch.Generator]]:
    """Where to train and what to draw from; weights made within follow the seed as well.

    torch's global randomness is as it was afterwards.
    """
    with torch.random.fork_rng(devices=[]), reproducible(torch.get_num_threads()):
        torch.default_generator.manual_seed(seed)
        yield device_named("auto"), torch.Generator().manual_seed(seed)
