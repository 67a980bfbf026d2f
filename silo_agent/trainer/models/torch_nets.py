"""The torch architectures: a multi-layer perceptron and a small convolutional network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import prod
from typing import Literal

import torch
from pydantic import Field, PositiveInt
from torch import nn

from silo_agent.trainer.models.parameters import settings
from silo_agent.trainer.models.protocol import Problem
from silo_agent.trainer.models.torch_learner import InitialWeights, TorchLearner, Training
from wire.errors import ConfigurationError
from wire.extractor_file import ExtractorFile, ExtractorKind


class PerceptronSettings(Training):
    """FedCT's network for FashionMNIST: 784-512-512-10."""

    hidden: tuple[PositiveInt, ...] = (512, 512)
    start: Literal["random", "extractor"] = "random"
    """`extractor` begins with the layers of the task's denoising extractor, and has its widths."""


class ConvolutionSettings(Training):
    """Blocks of 3×3 convolution and 2×2 pooling, then one hidden layer."""

    channels: tuple[PositiveInt, ...] = Field(default=(32, 64), min_length=1)
    hidden: PositiveInt = 128
    start: Literal["random", "extractor"] = "random"
    """`extractor` begins with the layers of the task's contrastive extractor, and has its widths."""


def torch_mlp(given: Mapping[str, object], problem: Problem) -> TorchLearner:
    """Rows of any shape, flattened."""
    chosen = settings("torch_mlp", PerceptronSettings, given)
    hidden, start = chosen.hidden, None
    if chosen.start == "extractor":
        file = _extractor("torch_mlp", ExtractorKind.DENOISING, problem)
        hidden = (*file.header.widths, file.header.dimensions)
        _require_widths("torch_mlp", given, hidden=list(hidden))
        start = _initial_weights(file)
    make = partial(perceptron, problem.row_shape, hidden, problem.classes)
    return TorchLearner(make, chosen, replace(problem, extractor=None), start)


def torch_cnn(given: Mapping[str, object], problem: Problem) -> TorchLearner:
    """Rows of shape (H, W) or (H, W, channels)."""
    if len(problem.row_shape) not in (2, 3):
        shape = " × ".join(str(size) for size in problem.row_shape)
        raise ConfigurationError(
            f"Learner torch_cnn needs images (height × width × channels); these rows are {shape}.",
            "Choose torch_mlp for tables.",
        )
    chosen = settings("torch_cnn", ConvolutionSettings, given)
    channels, hidden, start = chosen.channels, chosen.hidden, None
    if chosen.start == "extractor":
        file = _extractor("torch_cnn", ExtractorKind.CONTRASTIVE, problem)
        channels, hidden = file.header.widths, file.header.dimensions
        _require_widths("torch_cnn", given, channels=list(channels), hidden=hidden)
        start = _initial_weights(file)
    make = partial(convolutions, problem.row_shape, channels, hidden, problem.classes)
    return TorchLearner(make, chosen, replace(problem, extractor=None), start)


def perceptron(row_shape: tuple[int, ...], hidden: tuple[int, ...], classes: int) -> nn.Module:
    """Linear layers with ReLU between; C logits."""
    width = hidden[-1] if hidden else prod(row_shape)
    return nn.Sequential(*perceptron_trunk(row_shape, hidden), nn.Linear(width, classes))


def convolutions(
    row_shape: tuple[int, ...], channels: tuple[int, ...], hidden: int, classes: int
) -> nn.Module:
    """Convolutions that halve the image per block (rounded up); C logits."""
    trunk = convolution_trunk(row_shape, channels, hidden)
    return nn.Sequential(*trunk, nn.Linear(hidden, classes))


def perceptron_trunk(row_shape: tuple[int, ...], hidden: tuple[int, ...]) -> nn.Sequential:
    """All of `perceptron` but its last layer."""
    layers: list[nn.Module] = [nn.Flatten()]
    for width, following in pairwise([prod(row_shape), *hidden]):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers)


def convolution_trunk(
    row_shape: tuple[int, ...], channels: tuple[int, ...], hidden: int
) -> nn.Sequential:
    """All of `convolutions` but its last layer."""
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
        *layers, nn.Flatten(), nn.Linear(depths[-1] * height * width, hidden), nn.ReLU()
    )


class ChannelsFirst(nn.Module):
    """(n, H, W) or (n, H, W, channels) to (n, channels, H, W)."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """A view of the same images."""
        return images.unsqueeze(1) if images.dim() == 3 else images.permute(0, 3, 1, 2)


def _extractor(learner: str, kind: ExtractorKind, problem: Problem) -> ExtractorFile:
    file = problem.extractor
    if file is None:
        raise ConfigurationError(
            f"Learner {learner} is to start from the task's extractor, and the task names none.",
            "Remove `start` from its parameters.",
        )
    if file.header.kind is not kind:
        raise ConfigurationError(
            f"Learner {learner} can start from a {kind} extractor; the task's is {file.header.kind}.",
            "Remove `start` from its parameters; `features: extractor` works with any kind.",
        )
    if file.header.row_shape != problem.row_shape:
        raise ConfigurationError(
            f"Learner {learner} cannot start from the extractor: it takes rows of another shape.",
            "Choose one: `features: extractor`, or `start: extractor` among the parameters.",
        )
    return file


def _require_widths(learner: str, given: Mapping[str, object], **widths: object) -> None:
    for name, width in widths.items():
        written = given.get(name, width)
        if (list(written) if isinstance(written, tuple) else written) != width:
            raise ConfigurationError(
                f"Learner {learner} starts from an extractor whose {name} is {width}, not {written}.",
                f"Remove {name} from its parameters.",
            )


def _initial_weights(file: ExtractorFile) -> InitialWeights:
    scaling = ("mean", "scale")
    weights = [stored.name for stored in file.header.layout if stored.name not in scaling]
    return InitialWeights(
        tuple(file.arrays[name] for name in weights), file.arrays["mean"], file.arrays["scale"]
    )
