"""Trains an extractor on a public set and on nothing else; the same on one machine, the same every time."""

from __future__ import annotations

from importlib import import_module
from math import prod
from pathlib import Path

import numpy as np

from silo_agent.trainer.data.features import Encoder
from silo_agent.trainer.models.extractors import linear
from silo_agent.trainer.models.extractors.loading import StoredExtractor
from silo_agent.trainer.models.protocol import Features
from wire.errors import ConfigurationError
from wire.extractor_file import Array, ExtractorFile, ExtractorHeader, ExtractorKind
from wire.public_content import inspect
from wire.runtime.files import digest_of
from wire.schema import SetKind, SetSchema

MATRIX_DIMENSIONS = {ExtractorKind.PCA: 32, ExtractorKind.TFIDF_SVD: 128}
"""At most; fewer where the public rows have fewer directions."""
# Scales and matrices are computed from a sample where a set is larger than memory should be filled with.
_MOST_NUMBERS = 10**8
_MOST_SQUARED = 4096


class Progress:
    """What a training tells whoever waits for it; nobody, unless a subclass listens."""

    def step(self, done: int, steps: int, loss: float) -> None:
        """After every minibatch."""


def pretrain(
    public_file: Path,
    kind: ExtractorKind | None = None,
    *,
    dimensions: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> StoredExtractor:
    """An extractor of a stored public set; `kind` by the kind of set if None.

    ConfigurationError if the kind does not fit the set. What is None has the kind's default.
    """
    _, schema = inspect(public_file)
    chosen = fitting(schema)[0] if kind is None else kind
    if chosen not in fitting(schema):
        raise ConfigurationError(
            f"An extractor of kind {chosen} does not fit a public set of {_noun(schema)}.",
            f"Choose one of {', '.join(fitting(schema))}.",
        )
    rows = Encoder.from_public(schema, public_file).public(flat=False)
    return train(
        rows,
        chosen,
        public_set=digest_of(public_file),
        dimensions=dimensions,
        steps=steps,
        seed=seed,
        progress=progress,
    )


def train(
    rows: Features,
    kind: ExtractorKind,
    *,
    public_set: str,
    dimensions: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> StoredExtractor:
    """An extractor of encoded public rows (n, …) whose set has the digest `public_set`."""
    if kind in MATRIX_DIMENSIONS:
        if steps is not None:
            raise ConfigurationError(
                f"An extractor of kind {kind} is computed at once and takes no steps.",
                "Leave them out.",
            )
        header, arrays = _matrix(rows, kind, public_set, dimensions, seed)
    else:
        header, arrays = _network(
            rows, kind, public_set, dimensions, steps, seed, progress or Progress()
        )
    return _measured(ExtractorFile.of(header, **arrays), rows)


def fitting(schema: SetSchema) -> tuple[ExtractorKind, ...]:
    """The kinds that fit a set, the recommended one first."""
    if schema.kind is SetKind.TEXT:
        return (ExtractorKind.TFIDF_SVD,)
    if schema.kind is SetKind.ARRAY and len(schema.row_shape) in (2, 3):
        return (ExtractorKind.CONTRASTIVE, ExtractorKind.PCA, ExtractorKind.DENOISING)
    return (ExtractorKind.PCA, ExtractorKind.DENOISING)


def _matrix(
    rows: Features, kind: ExtractorKind, public_set: str, dimensions: int | None, seed: int
) -> tuple[ExtractorHeader, dict[str, Array]]:
    sample = _sample(rows, seed)
    exactly = dimensions is not None
    most = MATRIX_DIMENSIONS[kind] if dimensions is None else dimensions
    arrays: dict[str, Array] = {}
    if kind is ExtractorKind.PCA:
        arrays["mean"], arrays["scale"] = linear.scaling(sample)
        sample = linear.standardised(sample, arrays["mean"], arrays["scale"])
    arrays["components"] = linear.strongest(sample, most, exactly)
    header = ExtractorHeader(
        kind=kind,
        public_set=public_set,
        row_shape=rows.shape[1:],
        dimensions=len(arrays["components"]),
        public_norm=1.0,
        seed=seed,
        steps=0,
    )
    return header, arrays


def _network(
    rows: Features,
    kind: ExtractorKind,
    public_set: str,
    dimensions: int | None,
    steps: int | None,
    seed: int,
    progress: Progress,
) -> tuple[ExtractorHeader, dict[str, Array]]:
    try:
        training = import_module(f"silo_agent.trainer.models.extractors.{kind}")
        networks = import_module("silo_agent.trainer.models.extractors.networks")
    except ImportError as error:
        raise ConfigurationError(
            f"An extractor of kind {kind} needs {error.name or 'a library'}, which cannot be imported.",
            'Install it: pip install "consilium[torch]"',
        ) from error
    header = ExtractorHeader(
        kind=kind,
        public_set=public_set,
        row_shape=rows.shape[1:],
        dimensions=training.DIMENSIONS if dimensions is None else dimensions,
        widths=training.widths_for(rows.shape[1:]),
        public_norm=1.0,
        seed=seed,
        steps=training.STEPS if steps is None else steps,
    )
    colours = rows.shape[-1] if rows.ndim == 4 else 1
    width = colours if kind is ExtractorKind.CONTRASTIVE else prod(rows.shape[1:])
    mean, scale = linear.scaling(_sample(rows, seed).reshape(-1, width))
    scaled = networks.scale(header, rows, mean, scale)
    return header, {
        "mean": mean,
        "scale": scale,
        **training.trained(header, scaled, progress.step),
    }


def _sample(rows: Features, seed: int) -> Features:
    """(m, d) flat rows, all of them if they are not too many."""
    flat = rows.reshape(len(rows), -1)
    most = max(2, _MOST_NUMBERS // flat.shape[1])
    if flat.shape[1] > _MOST_SQUARED:
        most = min(most, _MOST_SQUARED)
    if len(flat) <= most:
        return flat
    chosen = np.random.default_rng(seed).choice(len(flat), most, replace=False)
    return flat[np.sort(chosen)]


def _measured(file: ExtractorFile, rows: Features) -> StoredExtractor:
    """The same extractor, its public norm measured on all public rows."""
    vectors = StoredExtractor(file).transform(rows).astype(np.float64)
    norm = float(np.linalg.norm(vectors, axis=1).max())
    if norm == 0:
        raise ConfigurationError(
            "The extractor makes the same of every public row.", "Choose another kind or seed."
        )
    header = ExtractorHeader(**{**file.header.model_dump(), "public_norm": norm})
    return StoredExtractor(ExtractorFile(header, file.arrays))


def _noun(schema: SetSchema) -> str:
    if schema.kind is SetKind.ARRAY:
        return "images" if len(schema.row_shape) in (2, 3) else "arrays"
    return "texts" if schema.kind is SetKind.TEXT else "tables"
