"""The file of an extractor: a header and plain numbers, nothing that could run.

    8 bytes   `CSLEXTR` and the version
    4 bytes   length of the header, little-endian
    header    canonical JSON
    numbers   the arrays of `ExtractorHeader.layout`, little-endian, C order, one behind the other

The private side opens what came over the network. So the header alone decides which arrays there are, of which
shape and type, and how long the file is; a file that differs in one byte of its length is refused unread.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from wire.errors import EXTRACTOR_INVALID, Refusal
from wire.runtime.files import write_atomically

MAX_BYTES = 128 << 20
"""The longest file that is read or written."""
_MAX_HEADER = 4096
_MAGIC = b"CSLEXTR\x01"
_LENGTH = struct.Struct("<I")
_NUMBER, _EXACT = np.dtype("<f4"), np.dtype("<f8")

Array: TypeAlias = NDArray[np.floating[Any]]


class ExtractorKind(StrEnum):
    """How an extractor is trained."""

    PCA = "pca"
    """Principal components of standardised rows."""
    DENOISING = "denoising"
    """The encoder of a denoising auto-encoder."""
    TFIDF_SVD = "tfidf_svd"
    """Latent semantic analysis: singular vectors of the words' weights."""
    CONTRASTIVE = "contrastive"
    """Convolutions that tell two views of one image from views of others."""


@dataclass(frozen=True)
class Stored:
    """One array of the file."""

    name: str
    shape: tuple[int, ...]
    exact: bool = False
    """float64 and not float32: what rows are centred by may be large beside their spread."""

    @property
    def dtype(self) -> np.dtype[np.floating[Any]]:
        """As it lies in the file."""
        return _EXACT if self.exact else _NUMBER

    @property
    def size_bytes(self) -> int:
        """Its length in the file."""
        return prod(self.shape) * self.dtype.itemsize


class ExtractorHeader(BaseModel):
    """What an extractor is; everything about its arrays follows from it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: ExtractorKind
    public_set: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """Digest of the only rows it has seen."""
    row_shape: Annotated[tuple[Annotated[int, Field(gt=0, lt=2**32)], ...], Field(max_length=8)]
    """Shape of an encoded row."""
    dimensions: Annotated[int, Field(ge=1, le=4096)]
    """Length of the vector a row becomes."""
    widths: Annotated[tuple[Annotated[int, Field(ge=1, le=4096)], ...], Field(max_length=8)] = ()
    """Layers before the last: hidden units of `denoising`, channels of `contrastive`."""
    public_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Largest Euclidean norm of the vector of a public row."""
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    """With `steps` and the set: all that is needed to train it once more and compare."""
    steps: Annotated[int, Field(ge=0, lt=2**63)]
    """Minibatches it was trained with; 0 where it is computed at once."""
    version: Literal[1] = 1

    @model_validator(mode="after")
    def _parts_fit_kind(self) -> Self:
        network = self.kind in (ExtractorKind.DENOISING, ExtractorKind.CONTRASTIVE)
        if bool(self.widths) != network:
            raise ValueError("networks have widths, and only networks have them")
        if self.kind is ExtractorKind.CONTRASTIVE and len(self.row_shape) not in (2, 3):
            raise ValueError("contrastive extractors take images")
        if self.kind is ExtractorKind.TFIDF_SVD and len(self.row_shape) != 1:
            raise ValueError("words have one weight each")
        return self

    @property
    def layout(self) -> tuple[Stored, ...]:
        """The arrays of the file in their order."""
        elements = prod(self.row_shape)
        match self.kind:
            case ExtractorKind.TFIDF_SVD:
                return (Stored("components", (self.dimensions, elements)),)
            case ExtractorKind.PCA:
                components = Stored("components", (self.dimensions, elements))
                return (*_scaling(elements), components)
            case ExtractorKind.DENOISING:
                layers = _dense((elements, *self.widths, self.dimensions), first=1)
                return (*_scaling(elements), *layers)
            case ExtractorKind.CONTRASTIVE:
                return self._convolutions()

    @property
    def size_bytes(self) -> int:
        """Length of the whole file."""
        numbers = sum(stored.size_bytes for stored in self.layout)
        return len(_MAGIC) + _LENGTH.size + len(self._canonical()) + numbers

    def _convolutions(self) -> tuple[Stored, ...]:
        height, width = self.row_shape[:2]
        colours = self.row_shape[2] if len(self.row_shape) == 3 else 1
        layers: list[Stored] = []
        for block, (depth, following) in enumerate(pairwise((colours, *self.widths)), start=1):
            layers.append(Stored(f"weight_{block}", (following, depth, 3, 3)))
            layers.append(Stored(f"bias_{block}", (following,)))
            height, width = -(-height // 2), -(-width // 2)
        last = (self.widths[-1] * height * width, self.dimensions)
        return (*_scaling(colours), *layers, *_dense(last, first=len(self.widths) + 1))

    def _canonical(self) -> bytes:
        values = self.model_dump(mode="json")
        return json.dumps(values, sort_keys=True, separators=(",", ":")).encode("ascii")


@dataclass(frozen=True, eq=False)
class ExtractorFile:
    """A header and its arrays by name, all finite, every scale positive; EXTRACTOR_INVALID if not so."""

    header: ExtractorHeader
    arrays: Mapping[str, Array] = field(repr=False)

    def __post_init__(self) -> None:
        layout = {stored.name: (stored.shape, stored.dtype) for stored in self.header.layout}
        if {name: (array.shape, array.dtype) for name, array in self.arrays.items()} != layout:
            raise _refused("its arrays are not those of its kind")
        if not all(bool(np.isfinite(array).all()) for array in self.arrays.values()):
            raise _refused("it has NaN or infinite numbers")
        if not (self.arrays.get("scale", np.ones(1)) > 0).all():
            raise _refused("a scale is not positive")

    @classmethod
    def of(cls, header: ExtractorHeader, **arrays: NDArray[Any]) -> ExtractorFile:
        """The file that holds these numbers, rounded to what it stores."""
        kinds = {stored.name: stored.dtype for stored in header.layout}
        rounded = {
            name: np.ascontiguousarray(array, dtype=kinds.get(name, _NUMBER))
            for name, array in arrays.items()
        }
        return cls(header, rounded)


def write_extractor(content: ExtractorFile, path: Path) -> None:
    """Writes the file, whole or not at all; the same content is always the same bytes."""
    if content.header.size_bytes > MAX_BYTES:
        raise _refused(f"it would be longer than {MAX_BYTES >> 20} MiB")
    header = content.header._canonical()
    numbers = [content.arrays[stored.name].tobytes() for stored in content.header.layout]
    whole = b"".join([_MAGIC, _LENGTH.pack(len(header)), header, *numbers])
    write_atomically(path, whole)


def read_extractor(path: Path) -> ExtractorFile:
    """The extractor at `path`; EXTRACTOR_INVALID if anything is amiss. Reads no more than the file has."""
    with path.open("rb") as file:
        header = _header(file)
        arrays: dict[str, Array] = {}
        for stored in header.layout:
            numbers = file.read(stored.size_bytes)
            if len(numbers) != stored.size_bytes:
                raise _refused("it ends too early")
            arrays[stored.name] = np.frombuffer(numbers, stored.dtype).reshape(stored.shape)
    return ExtractorFile(header, arrays)


def _header(file: BinaryIO) -> ExtractorHeader:
    if file.read(len(_MAGIC)) != _MAGIC:
        raise _refused("it does not begin like one of this version")
    length = file.read(_LENGTH.size)
    if len(length) < _LENGTH.size or _LENGTH.unpack(length)[0] > _MAX_HEADER:
        raise _refused("its header has no sensible length")
    written = file.read(_LENGTH.unpack(length)[0])
    try:
        header = ExtractorHeader.model_validate_json(written)
    except ValidationError as error:
        raise _refused("its header is of no known kind") from error
    if header._canonical() != written:
        raise _refused("its header is not written as Consilium writes it")
    begins = file.tell()
    if file.seek(0, 2) != header.size_bytes or header.size_bytes > MAX_BYTES:
        raise _refused("its length is not what its header says")
    file.seek(begins)
    return header


def _scaling(count: int) -> tuple[Stored, Stored]:
    return (
        Stored("mean", (count,), exact=True),
        Stored("scale", (count,), exact=True),
    )


def _dense(widths: tuple[int, ...], *, first: int) -> list[Stored]:
    layers: list[Stored] = []
    for number, (width, following) in enumerate(pairwise(widths), start=first):
        layers.append(Stored(f"weight_{number}", (following, width)))
        layers.append(Stored(f"bias_{number}", (following,)))
    return layers


def _refused(why: str) -> Refusal:
    return Refusal(EXTRACTOR_INVALID, why=why)
