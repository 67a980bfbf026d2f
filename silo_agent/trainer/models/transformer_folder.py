"""A Hugging Face model as a folder on this machine: checked before it is used, read without a network or foreign code.

Weights are read from safetensors only. The older format, pytorch_model.bin, is a pickle, and a pickle from
elsewhere is a program run where the patients' data are.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, TypeVar

# Read when the libraries are imported. The trainer has no network in any case.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import torch
from safetensors import safe_open
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from transformers.utils import logging as library_log

from wire.errors import ConfigurationError

_LOCAL: Final = {"local_files_only": True, "trust_remote_code": False}
_WEIGHTS: Final = "*.safetensors"

Found = TypeVar("Found")


@dataclass(frozen=True)
class ModelFolder:
    """A folder that holds config.json, weights as safetensors and the tokenizer's files."""

    path: Path

    @classmethod
    def checked(cls, path: Path) -> ModelFolder:
        """The folder, if it is whole; ConfigurationError says what it lacks. Loads no weights."""
        if not (path / "config.json").is_file():
            raise ConfigurationError(
                f"{path} is not a model folder on this machine: it has no config.json.",
                "Set `path` to a folder made by save_pretrained, relative to silo.yaml; models are never fetched from a hub.",
            )
        folder = cls(path)
        if not folder.weights:
            pickled = any(path.glob("*.bin")) or any(path.glob("*.pt"))
            raise ConfigurationError(
                f"The model folder {path} has no weights in safetensors"
                + (
                    "; those it has are a pickle, which may run any code when it is read."
                    if pickled
                    else "."
                ),
                "Convert it where you trust it: AutoModel.from_pretrained(folder).save_pretrained(new_folder).",
            )
        for part in folder.weights:
            folder._read("weights", partial(_opened, part))
        folder.config()
        return folder

    @property
    def weights(self) -> list[Path]:
        """The files with the weights, one or several."""
        return sorted(self.path.glob(_WEIGHTS))

    def config(self) -> Any:
        """The library's configuration object, a new one each time."""
        return self._read("config.json", lambda: AutoConfig.from_pretrained(self.path, **_LOCAL))

    def tokenizer(self) -> Any:
        """The tokenizer, able to pad."""
        made = self._read("tokenizer", lambda: AutoTokenizer.from_pretrained(self.path, **_LOCAL))
        # Without its files the library makes one that knows no word, and says nothing.
        if set(made.get_vocab()) <= set(made.all_special_tokens):
            raise ConfigurationError(
                f"The model folder {self.path} has no vocabulary for its tokenizer.",
                "Copy tokenizer.json, or vocab.txt and the like, from where the model was made.",
            )
        if made.pad_token is None:
            if made.eos_token is None:
                raise ConfigurationError(
                    f"The tokenizer in {self.path} knows no token for padding and none for the end of a text.",
                    "Add a pad_token to its tokenizer_config.json.",
                )
            made.pad_token = made.eos_token
        return made

    def network(self, classes: int, seed: int, pad: int) -> tuple[nn.Module, set[int]]:
        """The network with a head for `classes`, in float32, and the ids of the body's parameters read from the folder.

        What the folder lacks, or has for another number of classes, begins at random, by `seed`.
        """
        config = self.config()
        config.num_labels = classes
        config.pad_token_id = pad

        def load() -> Any:
            # Eager attention: the fused kernels do not add up in a fixed order on a GPU.
            return AutoModelForSequenceClassification.from_pretrained(
                self.path,
                config=config,
                dtype=torch.float32,
                attn_implementation="eager",
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **_LOCAL,
            )

        with seeded(seed):
            network, report = self._read("weights", load)
        new = set(report["missing_keys"]) | {
            key if isinstance(key, str) else key[0] for key in report["mismatched_keys"]
        }
        body = {id(parameter) for parameter in network.base_model.parameters()}
        read = {
            id(parameter)
            for name, parameter in network.named_parameters()
            if id(parameter) in body and name not in new
        }
        if len(read) < len(body) / 2:
            raise ConfigurationError(
                f"The weights in {self.path} are not those of the model its config.json describes.",
                "Copy the whole folder again from where it was made.",
            )
        return network, read

    def fingerprint(self, *, weights: bool) -> str:
        """SHA-256 of the small files (configuration, tokenizer) and, if asked for, of the weights."""
        files = sorted(
            path
            for path in self.path.iterdir()
            if path.is_file() and path.suffix in (".json", ".txt", ".model")
        )
        digest = hashlib.sha256()
        for path in [*files, *(self.weights if weights else ())]:
            status = path.stat()
            content = _sha256(path, status.st_size, status.st_mtime_ns)
            digest.update(f"{path.name} {content}\n".encode())
        return digest.hexdigest()

    def _read(self, what: str, reading: Callable[[], Found]) -> Found:
        try:
            with _quiet():
                return reading()
        except Exception as error:
            # Whatever the library finds wrong with a folder is the data scientist's to read.
            first = (str(error).splitlines() or [""])[0][:200]
            raise ConfigurationError(
                f"The {what} in {self.path} cannot be read: {type(error).__name__}: {first}",
                "Try AutoModelForSequenceClassification.from_pretrained and AutoTokenizer.from_pretrained on the folder in a Python shell.",
            ) from error


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Torch's own generators follow `seed` inside, and are afterwards as if nothing had been drawn.

    That of a GPU only where `device` is one: `torch.manual_seed` would make every GPU's randomness predictable
    for whoever draws noise there.
    """
    gpus = [torch.cuda.current_device()] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            torch.cuda.default_generators[gpu].manual_seed(seed)
        yield


def _opened(part: Path) -> None:
    """Fails if the header is damaged or the file is shorter than it says."""
    with safe_open(part, framework="pt") as opened:
        opened.keys()


@cache
def _sha256(path: Path, size: int, changed: int) -> str:
    """Of a file's content; `size` and `changed` make a file that was replaced another one."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps progress bars and reports of the library off the trainer's screen."""
    level, bars = library_log.get_verbosity(), library_log.is_progress_bar_enabled()
    library_log.set_verbosity_error()
    library_log.disable_progress_bar()
    try:
        yield
    finally:
        library_log.set_verbosity(level)
        if bars:
            library_log.enable_progress_bar()
