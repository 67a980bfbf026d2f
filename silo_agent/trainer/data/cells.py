"""What becomes of cells that do not fit: they count as empty, and the hospital is told how many there are.

Whether a silo takes part must not depend on a single cell: anyone who watches the socket would learn that cell. So
nothing here refuses. An unknown category, text in a number column, NaN and infinity are empty cells, and how an
empty cell is encoded follows from the public set alone (`features`), also where that has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from wire.runtime.arrays import all_finite
from wire.runtime.columns import (
    as_numbers,
    as_text,
    as_words,
    category_column,
    folded,
    number_column,
)
from wire.schema import Column, ColumnType

EMPTY: Final = "count as empty"
_EXAMPLES: Final = 3


@dataclass(frozen=True)
class Treated:
    """Cells of a column that are not taken as they are; for screens and logs of the private side alone."""

    column: str
    count: int
    why: str
    """What the cells are, as the end of "cells that …"."""
    taken_as: str = EMPTY
    """What becomes of them, as the end of "they …"."""
    examples: tuple[str, ...] = field(default=(), repr=False)
    """Up to three of the values."""

    @property
    def sentence(self) -> str:
        """Column and count; quotes no cell."""
        return f"Column {self.column}: cells that {self.why}: {self.count}; they {self.taken_as}."

    @property
    def quoted(self) -> str:
        """The examples in a line; empty if there are none."""
        shown = ", ".join(map(repr, self.examples))
        return f"{self.column}: for example {shown}" if shown else ""


def treated(
    column: str, chosen: NDArray[np.bool_], why: str, words: pa.Array = None, taken_as: str = EMPTY
) -> Iterator[Treated]:
    """A note of the `chosen` cells, quoting some of their `words`; none if there are no such cells."""
    if count := int(np.count_nonzero(chosen)):
        quoted = () if words is None else tuple(examples(words, chosen))
        yield Treated(column, count, why, taken_as, quoted)


def examples(words: pa.Array, chosen: NDArray[np.bool_]) -> list[str]:
    """Up to three different words among the chosen cells."""
    found = pc.unique(words.filter(pa.array(chosen))).drop_null()
    return [str(word) for word in found[:_EXAMPLES].to_pylist()]


def stored_column(values: pa.ChunkedArray, column: Column) -> tuple[pa.Array, list[Treated]]:
    """A column in the public set's stored form, null where a cell is empty or counts as empty.

    TypeError for a column of a type that `holds` refuses.
    """
    match column.type:
        case ColumnType.NUMBER:
            return _number_column(values, column)
        case ColumnType.CATEGORY:
            return _category_column(values, column)
        case ColumnType.TEXT:
            text = _held(as_text(values), column)
            return text, list(_unexpected(column, _mask(pc.is_null(text))))


def holds(values: pa.ChunkedArray, column: Column) -> bool:
    """True if the column's type, as its file declares it, can hold what the public column holds; looks at no cell."""
    none = pa.chunked_array([], values.type)
    match column.type:
        case ColumnType.NUMBER:
            return as_numbers(none) is not None
        case ColumnType.CATEGORY:
            return as_words(none) is not None
        case ColumnType.TEXT:
            return as_text(none) is not None


def stored_array(
    array: NDArray[np.generic], element_type: str
) -> tuple[NDArray[np.generic], list[Treated]]:
    """Rows with elements of the public type; NaN, infinity and what is beyond the type's range become 0."""
    # A float64 may be beyond the range of the public float32.
    with np.errstate(over="ignore"):
        stored = np.asarray(array, dtype=element_type)
    if stored.dtype.kind != "f" or all_finite(stored):
        return stored, []
    finite = np.isfinite(stored)
    notes = treated("features", ~finite, "are NaN or infinite", taken_as="count as 0")
    return np.where(finite, stored, np.zeros((), stored.dtype)), list(notes)


def _number_column(values: pa.ChunkedArray, column: Column) -> tuple[pa.Array, list[Treated]]:
    numbers = _held(as_numbers(values), column)
    words = as_words(values) if numbers.not_numbers.any() else None
    infinite = numbers.infinite
    notes = [
        *treated(column.name, numbers.not_numbers, "hold no number", words),
        *treated(column.name, infinite, "are infinite"),
        *_unexpected(column, numbers.empty),
    ]
    return number_column(numbers, numbers.empty | numbers.not_numbers | infinite), notes


def _category_column(values: pa.ChunkedArray, column: Column) -> tuple[pa.Array, list[Treated]]:
    words = folded(_held(as_words(values), column), column.categories)
    coded = category_column(words, column.categories)
    empty = _mask(pc.is_null(words))
    unknown = _mask(pc.is_null(coded.indices)) & ~empty
    why = "have a category that the public set lacks"
    return coded, [*treated(column.name, unknown, why, words), *_unexpected(column, empty)]


def _unexpected(column: Column, empty: NDArray[np.bool_]) -> Iterator[Treated]:
    """A note of empty cells where the public set has none."""
    if not column.nullable:
        yield from treated(column.name, empty, "are empty, and in the public set none is")


def _held(converted: pa.Array, column: Column) -> pa.Array:
    if converted is None:
        raise TypeError(f"column {column.name} is of a type that cannot hold {column.type}")
    return converted


def _mask(flags: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(flags.to_numpy(zero_copy_only=False), dtype=bool)
