"""Private labels as indices into a task's label space, however the hospital's file spells them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

UNUSABLE: Final = -1
"""The index of a row that teaches nothing: its label is empty, or not one of the silo's."""

_WHOLE = re.compile(r"([+-]?)0*(\d+)(?:\.0*)?")
_BOOLEAN = {"true": "1", "false": "0"}


def label_indices(words: pa.Array, labels: Sequence[str]) -> NDArray[np.int64]:
    """Index of each word in `labels`, -1 (`UNUSABLE`) where it is empty or unknown.

    An exact match wins; else 1, 1.0 and 01 are the same label, and so are true, True and, where the label
    space has numbers instead, 1.
    """
    coded = words.dictionary_encode()
    index_of = [_index(word, labels) for word in coded.dictionary.to_pylist()]
    # The last place is taken by empty cells, whose code is filled in as the length of the dictionary.
    table = np.array([*index_of, UNUSABLE], dtype=np.int64)
    codes: NDArray[np.int32] = coded.indices.fill_null(len(index_of)).to_numpy(zero_copy_only=False)
    return table[codes]


def _index(word: str, labels: Sequence[str]) -> int:
    for spelling in (word, canonical(word), _BOOLEAN.get(word.lower())):
        same = [
            index for index, label in enumerate(labels) if spelling in (label, canonical(label))
        ]
        exact = [index for index in same if labels[index] == spelling]
        if len(exact or same) == 1:
            return (exact or same)[0]
    return UNUSABLE


def canonical(label: str) -> str:
    """One spelling for whole numbers (1.0 is 1) and booleans (True is true); others as they are, trimmed."""
    label = label.strip()
    if label.lower() in _BOOLEAN:
        return label.lower()
    if whole := _WHOLE.fullmatch(label):
        sign = "-" if whole[1] == "-" and whole[2].strip("0") else ""
        return sign + whole[2]
    return label
