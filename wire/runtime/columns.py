"""Reads the columns of CSV and Parquet tables so that both formats give the same numbers and strings.

The coordinator reads public sets and the private side reads private tables by these rules, so a cell means the
same on both sides. No message contains a cell's value.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

EMPTY_CELLS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")
# From here on a float64 no longer tells neighbouring whole numbers apart.
INEXACT_FROM = 2**53
_NUMBER = r"^[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:inf(?:inity)?))$"
_INTEGER = r"^[+-]?[0-9]+$"


class UnusableFile(Exception):
    """Why a file cannot be used, and how to fix it; quotes no cell."""

    def __init__(self, why: str, fix: str) -> None:
        super().__init__(why)
        self.why = why
        self.fix = fix


@dataclass(frozen=True)
class Numbers:
    """A column as numbers: `values` (float64, 0 where a cell is no number), and masks of the other cells."""

    values: NDArray[np.float64]
    empty: NDArray[np.bool_]
    not_numbers: NDArray[np.bool_]
    inexact: NDArray[np.bool_]

    @property
    def infinite(self) -> NDArray[np.bool_]:
        """Which cells are infinite."""
        return np.isinf(self.values)


def is_words(kind: pa.DataType) -> bool:
    """True for a column type that holds strings."""
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def is_number(kind: pa.DataType) -> bool:
    """True for a column type that holds numbers."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def as_numbers(column: pa.ChunkedArray) -> Numbers | None:
    """The column as numbers, NaN being an empty cell; None for a type that is not numeric."""
    column = plain(column)
    kind = column.type
    if is_words(kind):
        return _parse(as_words(column))
    if not (is_number(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        return None
    inexact = np.zeros(len(column), dtype=bool)
    if pa.types.is_integer(kind):
        inexact = _beyond_exact(column)
    if pa.types.is_boolean(kind):
        column = pc.cast(column, pa.uint8())
    values = _float64(column)
    empty = np.isnan(values)
    return Numbers(np.where(empty, 0.0, values) + 0.0, empty, np.zeros_like(empty), inexact)


def as_words(column: pa.ChunkedArray, empty: Collection[str] = EMPTY_CELLS) -> pa.Array | None:
    """The column as trimmed strings, null where a cell is one of `empty`; None for other types.

    The numbers 1 and 1.0 are the string "1", booleans are "true" and "false".
    """
    column = plain(column)
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind):
        return pc.cast(column, pa.large_string())
    if is_number(kind):
        cells = [None if np.isnan(value) else _word(value) for value in _float64(column)]
        return pa.array(cells, pa.large_string())
    if not is_words(kind):
        return None
    words = pc.utf8_trim_whitespace(column)
    missing = pc.is_in(words, value_set=pa.array(sorted(empty), pa.large_string()))
    return pc.if_else(missing, pa.scalar(None, pa.large_string()), words)


def folded(words: pa.Array, categories: Collection[str]) -> pa.Array:
    """The words in lower case if `categories` are just true and false, whatever their case."""
    booleans = {category.lower() for category in categories} <= {"true", "false"}
    return pc.utf8_lower(words) if booleans else words


def as_text(column: pa.ChunkedArray) -> pa.Array | None:
    """The column verbatim as large_string, null where a cell is blank; None for a type that does not hold strings."""
    column = plain(column)
    if pa.types.is_null(column.type):
        return pc.cast(column, pa.large_string())
    if not is_words(column.type):
        return None
    blank = pc.equal(pc.utf8_trim_whitespace(column), "")
    return pc.if_else(blank, pa.scalar(None, pa.large_string()), column)


def plain(column: pa.ChunkedArray) -> pa.Array:
    """The column in one piece, a dictionary replaced by its values."""
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    if is_words(column.type):
        # 64-bit offsets before the chunks are joined: together they may exceed 2 GiB.
        column = pc.cast(column, pa.large_string())
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def number_column(numbers: Numbers, empty: NDArray[np.bool_] | None = None) -> pa.Array:
    """Stored form of a number column: float64, null where a cell is empty, or where `empty` says so."""
    mask = numbers.empty if empty is None else empty
    return pa.array(numbers.values, pa.float64(), mask=mask)


def category_column(words: pa.Array, categories: Sequence[str]) -> pa.Array:
    """Stored form of a category column: int32 codes into `categories`, null where a cell is empty."""
    codes = pc.index_in(words, value_set=pa.array(categories, pa.large_string()))
    return pa.DictionaryArray.from_arrays(codes, pa.array(categories, pa.string()))


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names for a sentence; a long list ends in how many more there are."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _parse(words: pa.Array) -> Numbers:
    empty = _numpy(pc.is_null(words))
    fits = pc.fill_null(pc.match_substring_regex(words, _NUMBER), False)
    values = _numpy(pc.cast(pc.if_else(fits, words, "0"), pa.float64()))
    whole = _numpy(pc.fill_null(pc.match_substring_regex(words, _INTEGER), False))
    # Adding 0.0 turns -0.0 into 0.0: equal rows have equal bytes.
    return Numbers(
        values + 0.0, empty, ~_numpy(fits) & ~empty, whole & (np.abs(values) >= INEXACT_FROM)
    )


def _beyond_exact(column: pa.Array) -> NDArray[np.bool_]:
    beyond = pc.greater_equal(column, INEXACT_FROM)
    if not pa.types.is_unsigned_integer(column.type):
        beyond = pc.or_(beyond, pc.less_equal(column, -INEXACT_FROM))
    return _numpy(pc.fill_null(beyond, False))


def _float64(column: pa.Array) -> NDArray[np.float64]:
    """Values as float64, NaN for null; integers that do not fit are rounded (callers look at `inexact`)."""
    if not len(column):
        return np.zeros(0)
    return _numpy(pc.fill_null(pc.cast(column, pa.float64(), safe=False), float("nan")))


def _numpy(column: pa.Array) -> NDArray[Any]:
    array: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return array


def _word(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
