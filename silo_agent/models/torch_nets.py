"""The torch architectures: a multi-layer perceptron and a small convolutional network."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from math import prod

import torch
from pydantic import Field, PositiveInt
from torch import nn

from silo_agent.models.parameters import settings
from silo_agent.models.protocol import Problem
from silo_agent.models.torch_learner import TorchLearner, Training
from wire.errors import ConfigurationError


class PerceptronSettings(Training):
    """FedCT's network for FashionMNIST: 784-512-512-10."""

    hidden: tuple[PositiveInt, ...] = (512, 512)


class ConvolutionSettings(Training):
    """Blocks of 3×3 convolution and 2×2 pooling, then one hidden layer."""

    channels: tuple[PositiveInt, ...] = Field(default=(32, 64), min_length=1)
    hidden: PositiveInt = 128


def torch_mlp(given: Mapping[str, object], problem: Problem) -> TorchLearner:
    """Rows of any shape, flattened."""
    chosen = settings("torch_mlp", PerceptronSettings, given)
    make = partial(perceptron, problem.row_shape, chosen.hidden, problem.classes)
    return TorchLearner(make, chosen, problem)


def torch_cnn(given: Mapping[str, object], problem: Problem) -> TorchLearner:
    """Rows of shape (H, W) or (H, W, channels)."""
    if len(problem.row_shape) not in (2, 3):
        shape = " × ".join(str(size) for size in problem.row_shape)
        raise ConfigurationError(
            f"Learner torch_cnn needs images (height × width × channels); these rows are {shape}.",
            "Choose torch_mlp for tables.",
        )
    chosen = settings("torch_cnn", ConvolutionSettings, given)
    make = partial(convolutions, problem.row_shape, chosen.channels, chosen.hidden, problem.classes)
    return TorchLearner(make, chosen, problem)


def perceptron(row_shape: tuple[int, ...], hidden: tuple[int, ...], classes: int) -> nn.Module:
    """Linear layers with ReLU between; C logits."""
    widths = [prod(row_shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for width, following in pairwise(widths):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def convolutions(
    row_shape: tuple[int, ...], channels: tuple[int, ...], hidden: int, classes: int
) -> nn.Module:
    """Convolutions that halve the image per block (rounded up); C logits."""
    height, width = row_shape[:2]
    depths = [row_shape[2] if len(row_shape) == 3 else 1, *channels]
    layers: list[nn.Module] = [ChannelsFirst()]
    for depth, following in pairwise(depths):
        layers += [
            nn.Conv2d(depth, following, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2, ceil_mode=True),
        ]
        height, width = -(-height // 2), -(-width // 2)
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(depths[-1] * height * width, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


class ChannelsFirst(nn.Module):
    """(n, H, W) or (n, H, W, channels) to (n, channels, H, W)."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """A view of the same images."""
        return images.unsqueeze(1) if images.dim() == 3 else images.permute(0, 3, 1, 2)
