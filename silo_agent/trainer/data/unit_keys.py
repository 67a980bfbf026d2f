"""The number that stands for a patient everywhere in the trainer: a hash of the id, whatever else the file holds.

Without `data.patient_id` every row is a unit of its own. Its number is then a hash of what stands in the row, and of
equal rows the second is told from the first by a count, so that neither the order of the file nor another row matters.
Neighbouring data sets differ in one row then, and a person with several rows is not protected as one.
"""

from __future__ import annotations

import hashlib
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from silo_agent.trainer.data.private_data import PrivateData
from silo_agent.trainer.models.places import mixed
from wire.runtime.columns import as_words

Integers: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]

_POSITIVE: Final = np.uint64(2**63 - 1)
_EMPTY: Final = np.uint64(1)


def unit_keys(private: PrivateData) -> Integers:
    """(n,) whose row it is: equal for rows of one patient, the same whatever other rows there are and in any order.

    Numbers of 63 bits. Rows without a patient id are one unit together.
    """
    if private.patients is None:
        return _single_rows(row_marks(private))
    return (_hashed(private.patients) & _POSITIVE).astype(np.int64)


def patient_marks(private: PrivateData) -> Words | None:
    """(patients,) a hash of every id that occurs, in ascending order; None if rows have none."""
    if private.patients is None:
        return None
    return np.unique(_hashed(private.patients.drop_null()))


def row_marks(private: PrivateData) -> Words:
    """(n,) a hash of what stands in each row, label included; columns may be in any order, 1 is 1.0."""
    named = mixed(_hashed(private.labels) ^ _name("label", private.settings.label))
    if isinstance(private.features, np.ndarray):
        return np.asarray(mixed(named + _array(private.features)), dtype=np.uint64)
    for name, column in zip(private.features.column_names, private.features.columns, strict=True):
        named = named + mixed(_cells(column) ^ _name("feature", name))
    return mixed(named)


def _single_rows(marks: Words) -> Integers:
    """Equal marks are counted, so that each row has a number of its own."""
    order = np.argsort(marks, kind="stable")
    ordered = marks[order]
    begins = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    lengths = np.diff(np.r_[begins, len(ordered)])
    turn = np.empty(len(marks), dtype=np.uint64)
    turn[order] = np.arange(len(ordered)) - np.repeat(begins, lengths)
    return (mixed(marks + mixed(turn)) & _POSITIVE).astype(np.int64)


def _cells(column: pa.ChunkedArray) -> Words:
    words = as_words(column)
    return _hashed(pc.cast(column, pa.large_string()) if words is None else words)


def _hashed(words: pa.Array | pa.ChunkedArray) -> Words:
    """(n,) a hash of every string; empty cells have one, too."""
    if isinstance(words, pa.ChunkedArray):
        words = words.combine_chunks()
    encoded = words.dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    hashes = np.array([_hash(text) for text in texts] or [0], dtype=np.uint64)
    missing = encoded.indices.is_null().to_numpy(zero_copy_only=False)
    indices = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
    return np.where(missing, _EMPTY, hashes[indices])


def _array(rows: npt.NDArray[np.generic]) -> Words:
    """(n,) a hash of the bytes of each row of an array."""
    flat = np.ascontiguousarray(rows.reshape(len(rows), -1)).view(np.uint8)
    padded = np.pad(flat.reshape(len(rows), -1), ((0, 0), (0, -flat.shape[-1] % 8)))
    whole = np.zeros(len(rows), dtype=np.uint64)
    for word in padded.view(np.uint64).T:
        whole = mixed(whole ^ word)
    return whole


def _name(kind: str, name: str) -> np.uint64:
    return np.uint64(_hash(f"{kind}/{name}"))


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")
