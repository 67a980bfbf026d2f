"""Contrastive learning on images: two altered views of an image shall look alike, and unlike all others.

The views differ in crop, place, brightness, contrast and noise. None is mirrored: whether a mirrored image means
the same (a garment) or not (a digit, a heart) is nothing that unlabelled images tell.
"""

from __future__ import annotations

import torch
from torch import nn

from silo_agent.trainer.models.extractors.networks import OnStep, seeded, trunk, weights_of
from silo_agent.trainer.models.protocol import Features
from wire.extractor_file import Array, ExtractorHeader

STEPS = 800
DIMENSIONS = 128
_BATCH = 128
_TEMPERATURE = 0.5
_LEARNING_RATE = 1e-3
_PROJECTED = 64
# A view keeps between this share of the side and all of it.
_LEAST_SIDE = 0.5
_BRIGHTNESS, _CONTRAST, _NOISE = 0.2, 0.4, 0.1


def widths_for(row_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Channels of as many blocks as bring the longer side down to 8, at least two."""
    side, channels = max(row_shape[:2]), [32, 64]
    while side > 8 * 2 ** len(channels):
        channels.append(128)
    return tuple(channels)


def trained(header: ExtractorHeader, rows: Features, on_step: OnStep) -> dict[str, Array]:
    """Weights of the trunk, learned from scaled images (n, H, W[, channels]) in `header.steps` minibatches."""
    with seeded(header.seed) as (device, draw):
        network = trunk(header)
        projection = nn.Sequential(
            nn.Linear(header.dimensions, header.dimensions),
            nn.ReLU(),
            nn.Linear(header.dimensions, _PROJECTED),
        )
        learner = nn.Sequential(network, projection).to(device)
        optimiser = torch.optim.Adam(learner.parameters(), lr=_LEARNING_RATE)
        whole = torch.as_tensor(rows, dtype=torch.float32)
        for step in range(header.steps):
            # Without replacement: an image is not to be told from itself.
            images = whole[torch.randperm(len(whole), generator=draw)[:_BATCH]]
            views = torch.cat([altered(images, draw), altered(images, draw)])
            loss = disagreement(learner(views.to(device)))
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
            on_step(step + 1, header.steps, float(loss.detach()))
        return weights_of(header, network)


def altered(images: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """A view of each image (n, H, W[, channels]), all numbers drawn from `draw`."""
    grey = images.dim() == 3
    planes = images.unsqueeze(1) if grey else images.permute(0, 3, 1, 2)
    count = len(images)

    def between(low: float, high: float, *shape: int) -> torch.Tensor:
        return low + (high - low) * torch.rand((count, *shape), generator=draw)

    side = between(_LEAST_SIDE, 1.0)
    place = between(-1.0, 1.0, 2) * (1 - side)[:, None]
    window = torch.zeros(count, 2, 3)
    window[:, 0, 0] = window[:, 1, 1] = side
    window[:, :, 2] = place
    grid = nn.functional.affine_grid(window, list(planes.shape), align_corners=False)
    cropped = nn.functional.grid_sample(planes, grid, padding_mode="border", align_corners=False)
    contrast = between(1 - _CONTRAST, 1 + _CONTRAST, 1, 1, 1)
    brightness = between(-_BRIGHTNESS, _BRIGHTNESS, 1, 1, 1)
    noise = _NOISE * torch.randn(cropped.shape, generator=draw)
    view = cropped * contrast + brightness + noise
    return view.squeeze(1) if grey else view.permute(0, 2, 3, 1)


def disagreement(projected: torch.Tensor, temperature: float = _TEMPERATURE) -> torch.Tensor:
    """NT-Xent of vectors (2n, k): row i and row i + n are views of one image."""
    unit = nn.functional.normalize(projected, dim=1)
    similarity = unit @ unit.T / temperature
    itself = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    partner = torch.arange(len(unit), device=unit.device).roll(len(unit) // 2)
    return nn.functional.cross_entropy(similarity.masked_fill(itself, -torch.inf), partner)
