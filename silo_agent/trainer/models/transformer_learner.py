"""A language model that goes on learning: any local Hugging Face sequence classifier, whole or by low-rank adapters."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from peft import LoraConfig, inject_adapter_in_model
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator
from torch import nn

from silo_agent.trainer.models.parameters import settings
from silo_agent.trainer.models.protocol import Features, Labelled, Labels, Problem, Reads
from silo_agent.trainer.models.torch_learner import device_named, reproducible
from silo_agent.trainer.models.transformer_folder import ModelFolder, seeded
from wire.errors import ConfigurationError

TEXTS_AT_ONCE: Final = 64
LONGEST_GRADIENT: Final = 1.0
"""Gradients are cut to this norm: a few strange notes must not undo what the model knew of the language."""


class Lora(BaseModel):
    """Low-rank adapters: W + (alpha / rank)·B·A, of which only A and B are trained."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: PositiveInt = 8
    alpha: PositiveInt = 16
    dropout: float = Field(default=0.0, ge=0, lt=1)
    targets: tuple[str, ...] | Literal["all-linear"] = "all-linear"
    """Names of the layers that get one (query, value, …); by default every linear layer of the model."""


class TransformerSettings(BaseModel):
    """What `parameters` may say of a language model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Path
    """The model's folder, relative to silo.yaml."""
    max_length: int = Field(default=256, ge=2)
    """Tokens of a text that are read, or as many as the model takes; what follows is cut off."""
    learning_rate: float = Field(default=5e-5, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    private_batch: PositiveInt = 16
    """Rows of D in every minibatch, drawn with replacement."""
    pseudo_batch: PositiveInt = 16
    """Rows of P in every minibatch once there is a P."""
    fit_steps: PositiveInt = 300
    """Minibatch steps of one `fit`; `advance` is told its own number."""
    lora: Lora | None = None
    """Train adapters and the classifier, and leave the model as it is."""
    freeze: bool = False
    """Train the classifier alone."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    n_jobs: PositiveInt = 1
    """CPU threads while training and predicting."""

    @model_validator(mode="before")
    @classmethod
    def _bare_lora(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and isinstance(given.get("lora"), bool):
            return {**given, "lora": {} if given["lora"] else None}
        return given

    @model_validator(mode="after")
    def _one_of(self) -> TransformerSettings:
        if self.lora is not None and self.freeze:
            raise ValueError("lora trains adapters and freeze trains none: choose one")
        return self

    @property
    def partial(self) -> bool:
        """Whether the model itself stays as its folder has it."""
        return self.lora is not None or self.freeze


def transformers_(given: Mapping[str, object], problem: Problem) -> TransformerLearner:
    """Rows are texts."""
    if "path" not in given:
        raise ConfigurationError(
            "Learner transformers needs a parameter path.",
            "Name the folder of a model on this machine: `parameters: {path: ./clinical-bert}`.",
        )
    chosen = settings("transformers", TransformerSettings, given)
    if problem.row_shape != ():
        raise ConfigurationError(
            "Learner transformers reads texts; these rows are numbers.",
            "Use it where the public set is text and silo.yaml says features: raw.",
        )
    return TransformerLearner(chosen, replace(problem, extractor=None))


class TransformerLearner:
    """A continuing learner on raw texts.

    The folder is looked at when it is built, weights are loaded when they are needed. A pickle holds what was
    trained (all weights; with `lora` adapters and head; with `freeze` the head), the optimiser and a fingerprint of
    the folder, which must still be there unchanged; it is free of any device.
    """

    reads: Reads = "texts"

    def __init__(self, chosen: TransformerSettings, problem: Problem) -> None:
        self._settings = chosen
        self._problem = problem
        self._device = device_named(chosen.device)
        self._folder = ModelFolder.checked(chosen.path)
        self._tokenizer = self._folder.tokenizer()
        self._network: nn.Module | None = None
        self._optimiser: torch.optim.Optimizer | None = None
        self._kept: bytes | None = None

    def advance(self, private: Labelled, pseudo: Labelled | None, steps: int, seed: int) -> None:
        """Takes exactly `steps` AdamW steps on minibatches of D and, unless empty, of P."""
        if len(private) == 0:
            raise ValueError("a learner needs at least one private row")
        sources = [(*self._checked(private), self._settings.private_batch)]
        if pseudo is not None and len(pseudo) > 0:
            sources.append((*self._checked(pseudo), self._settings.pseudo_batch))
        network, optimiser = self._ready()
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        draw = torch.Generator().manual_seed(seed)
        # Seeded for the model's own dropout.
        with reproducible(self._settings.n_jobs), seeded(seed, self._device):
            network.train()
            for _ in range(steps):
                texts, labels = _minibatch(sources, draw)
                logits = self._logits(network, texts)
                optimiser.zero_grad()
                loss = nn.functional.cross_entropy(logits, labels.to(self._device))
                torch.autograd.backward(loss)
                nn.utils.clip_grad_norm_(trained, LONGEST_GRADIENT)
                optimiser.step()

    def fit(self, X: Features, y: Labels, /) -> TransformerLearner:
        """Starts anew from the folder and takes `fit_steps` steps on these texts alone."""
        self._network = self._optimiser = self._kept = None
        self.advance(Labelled(X, y), None, self._settings.fit_steps, self._problem.seed)
        return self

    def copy_weights_from(self, other: object, /) -> bool:
        """Copies the trained weights; returns False and changes nothing if folder or settings differ."""
        if (
            not isinstance(other, TransformerLearner)
            or self._architecture() != other._architecture()
        ):
            return False
        self._ready()[0].load_state_dict(_trained(other._ready()[0]), strict=False)
        return True

    def predict(self, X: Features, /) -> Labels:
        """The class with the largest logit."""
        texts = _texts(X)
        labels = np.empty(len(texts), dtype=np.int64)
        network, _ = self._ready()
        # Texts of like length together: a batch is as wide as its longest.
        order = np.argsort([len(text) for text in texts], kind="stable")
        with reproducible(self._settings.n_jobs), torch.inference_mode():
            network.eval()
            for start in range(0, len(texts), TEXTS_AT_ONCE):
                rows = order[start : start + TEXTS_AT_ONCE]
                labels[rows] = self._logits(network, texts[rows]).argmax(dim=1).cpu().numpy()
        return labels

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self._settings, "problem": self._problem, "kept": self._checkpoint()}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.__init__(saved["settings"], saved["problem"])  # type: ignore[misc]
        self._kept = saved["kept"]

    def _architecture(self) -> tuple[object, ...]:
        chosen, folder = self._settings, self._folder.fingerprint(weights=True)
        return folder, chosen.lora, chosen.freeze, self._problem.classes

    def _ready(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        if self._network is None or self._optimiser is None:
            self._network, self._optimiser = self._pretrained()
            if self._kept is not None:
                self._resume(self._network, self._optimiser, self._kept)
                self._kept = None
        return self._network, self._optimiser

    def _pretrained(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        chosen, seed = self._settings, self._problem.seed
        network, read = self._folder.network(
            self._problem.classes, seed, self._tokenizer.pad_token_id
        )
        if chosen.lora is not None:
            network = _adapted(network, chosen.lora, seed)
        if chosen.partial:
            for parameter in network.parameters():
                parameter.requires_grad_(id(parameter) not in read)
        network = network.to(self._device)
        optimiser = torch.optim.AdamW(
            [parameter for parameter in network.parameters() if parameter.requires_grad],
            lr=chosen.learning_rate,
            weight_decay=chosen.weight_decay,
        )
        return network, optimiser

    def _checkpoint(self) -> bytes | None:
        """What a restart needs besides the folder; None if nothing has been trained yet."""
        if self._network is None or self._optimiser is None:
            return self._kept
        buffer = io.BytesIO()
        torch.save(
            {
                "folder": self._folder.fingerprint(weights=self._settings.partial),
                "network": _trained(self._network),
                "optimiser": self._optimiser.state_dict(),
            },
            buffer,
        )
        return buffer.getvalue()

    def _resume(
        self, network: nn.Module, optimiser: torch.optim.Optimizer, checkpoint: bytes
    ) -> None:
        # The machine that goes on may lack the GPU of the one that stopped.
        state = torch.load(io.BytesIO(checkpoint), map_location="cpu", weights_only=True)
        if state["folder"] != self._folder.fingerprint(weights=self._settings.partial):
            raise ConfigurationError(
                f"The model folder {self._folder.path} has changed since the learner was kept.",
                "Put back the files the task began with.",
            )
        if state["network"].keys() != _trained(network).keys():
            raise ConfigurationError(
                "The learner was kept by another version of transformers or peft, whose layers have other names.",
                "Install the version the task began with.",
            )
        network.load_state_dict(state["network"], strict=False)
        optimiser.load_state_dict(state["optimiser"])

    def _logits(self, network: nn.Module, texts: Features) -> torch.Tensor:
        most = min(
            self._settings.max_length,
            getattr(network.config, "max_position_embeddings", None) or self._settings.max_length,
            self._tokenizer.model_max_length,
        )
        read = self._tokenizer([*texts], truncation=True, max_length=most)["input_ids"]
        pad = self._tokenizer.pad_token_id
        # To models that mark no beginning, a text without a token would be a row of no width.
        tokens = [torch.tensor(row or [pad]) for row in read]
        logits: torch.Tensor = network(
            input_ids=_aligned(tokens, pad).to(self._device),
            attention_mask=_aligned([torch.ones_like(row) for row in tokens], 0).to(self._device),
        ).logits
        return logits

    def _checked(self, data: Labelled) -> tuple[Features, torch.Tensor]:
        if data.labels.min() < 0 or data.labels.max() >= self._problem.classes:
            raise ValueError(f"labels must lie in 0..{self._problem.classes - 1}")
        return _texts(data.features), torch.as_tensor(np.asarray(data.labels, dtype=np.int64))


def _minibatch(
    sources: Sequence[tuple[Features, torch.Tensor, int]], draw: torch.Generator
) -> tuple[Features, torch.Tensor]:
    """Texts and labels drawn with replacement: of each source as many as its third entry says."""
    batch = []
    for texts, labels, size in sources:
        chosen = torch.randint(len(texts), (size,), generator=draw)
        batch.append((texts[chosen.numpy()], labels[chosen]))
    texts_of, labels_of = zip(*batch, strict=True)
    return np.concatenate(texts_of), torch.cat(labels_of)


def _adapted(network: nn.Module, lora: Lora, seed: int) -> nn.Module:
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    adapters = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=targets
    )
    try:
        with seeded(seed):
            adapted: nn.Module = inject_adapter_in_model(adapters, network)
    except ValueError as error:
        names = sorted(
            {name.split(".")[-1] for name, part in network.named_modules() if _linear(part)}
        )
        raise ConfigurationError(
            "Parameter lora.targets of learner transformers names no layer of this model.",
            f"Its linear layers are {', '.join(names)}; or write all-linear.",
        ) from error
    return adapted


def _aligned(rows: list[torch.Tensor], filling: int) -> torch.Tensor:
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=filling)


def _linear(part: nn.Module) -> bool:
    return isinstance(part, nn.Linear)


def _trained(network: nn.Module) -> dict[str, torch.Tensor]:
    """The weights that the folder does not have."""
    fixed = {name for name, value in network.named_parameters() if not value.requires_grad}
    return {name: value for name, value in network.state_dict().items() if name not in fixed}


def _texts(rows: Features) -> Features:
    if rows.ndim != 1 or rows.dtype.kind not in "OU":
        raise ValueError("a language model reads texts, one per row")
    return rows
