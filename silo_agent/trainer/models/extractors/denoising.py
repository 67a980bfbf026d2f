"""A denoising auto-encoder for tables: to mend cells that were swapped, it must know how columns hang together."""

from __future__ import annotations

import torch
from torch import nn

from silo_agent.trainer.models.extractors.networks import OnStep, seeded, trunk, weights_of
from silo_agent.trainer.models.protocol import Features
from wire.extractor_file import Array, ExtractorHeader

STEPS = 2000
DIMENSIONS = 64
_BATCH = 128
_SWAPPED = 0.2
_LEARNING_RATE = 1e-3


def widths_for(row_shape: tuple[int, ...]) -> tuple[int, ...]:
    """One hidden layer, whatever the rows."""
    return (256,)


def trained(header: ExtractorHeader, rows: Features, on_step: OnStep) -> dict[str, Array]:
    """Weights of the encoder, learned from standardised rows (n, d) in `header.steps` minibatches."""
    with seeded(header.seed) as (device, draw):
        encoder = trunk(header)
        decoder = nn.Linear(header.dimensions, rows.shape[1])
        network = nn.Sequential(encoder, decoder).to(device)
        optimiser = torch.optim.Adam(network.parameters(), lr=_LEARNING_RATE)
        whole = torch.as_tensor(rows, dtype=torch.float32)
        for step in range(header.steps):
            clean, others = (
                whole[torch.randint(len(whole), (_BATCH,), generator=draw)] for _ in range(2)
            )
            mended = network(swapped(clean, others, draw).to(device))
            loss = nn.functional.mse_loss(mended, clean.to(device))
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
            on_step(step + 1, header.steps, float(loss.detach()))
        return weights_of(header, encoder)


def swapped(rows: torch.Tensor, others: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """Rows with a fifth of their cells taken from `others`: what stands there instead is plausible."""
    return torch.where(torch.rand(rows.shape, generator=draw) < _SWAPPED, others, rows)
