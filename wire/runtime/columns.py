"""Reads CSV and Parquet tables so that both formats give the same numbers and strings.

The coordinator reads public sets and the private side reads private tables by these rules, so a cell means the
same on both sides. No message contains a cell's value.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from numpy.typing import NDArray

EMPTY_CELLS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")
# From here on a float64 no longer tells neighbouring whole numbers apart.
INEXACT_FROM = 2**53
_NUMBER = r"^[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:inf(?:inity)?))$"
_INTEGER = r"^[+-]?[0-9]+$"
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
# A quoted cell must fit into one block; notes of several megabytes do.
_BLOCK_BYTES = 64 << 20


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


@dataclass(frozen=True)
class RepairedTable:
    """A table read whatever single rows and cells are like, and how many were not as they should be."""

    table: pa.Table
    ragged: int
    """Rows with another number of cells than the header: they stay in their place, every cell null."""
    undecodable: Mapping[str, int]
    """By column, cells that are not UTF-8: what cannot be decoded is replaced by U+FFFD."""


def read_table(path: Path) -> pa.Table:
    """The named columns of a .csv or .parquet file, in order; names trimmed, every cell of a CSV a string.

    A row index that pandas wrote without a name is left out: it says nothing about the row.
    """
    return _read(path, repair=False).table


def read_repaired_table(path: Path) -> RepairedTable:
    """As `read_table`, but no single row or cell keeps the file from being read."""
    return _read(path, repair=True)


def _read(path: Path, *, repair: bool) -> RepairedTable:
    ragged = 0
    undecodable: dict[str, int] = {}
    try:
        if path.suffix.lower() == ".csv":
            table, ragged = _read_csv(path, repair)
        else:
            table = _read_parquet(path)
        if repair:
            table, undecodable = _decoded(table)
        table.validate(full=True)
    except (pa.ArrowException, csv.Error, OSError, ValueError) as error:
        raise _explained(path, error) from error
    names = [name.strip() for name in table.column_names]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UnusableFile(f"it has several columns named {listed(twice)}", "Rename them.")
    if "" in names:
        number = names.index("") + 1
        raise UnusableFile(f"its column {number} has no name", "Name every column.")
    found = {name.strip(): count for name, count in undecodable.items()}
    return RepairedTable(table.rename_columns(names), ragged, found)


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


def _read_csv(path: Path, repair: bool) -> tuple[pa.Table, int]:
    """The table and, where they are repaired, how many rows are ragged."""
    errors = "replace" if repair else "strict"
    with path.open(encoding="utf-8-sig", newline="", errors=errors) as file:
        header = next(csv.reader(file), [])
    if not header:
        raise UnusableFile("it is empty", "Write a header line and at least one row.")
    if len(header) == 1 and (";" in header[0] or "\t" in header[0]):
        raise UnusableFile(
            "its columns are not separated by commas",
            "Save it with commas between columns and points in decimals, or as Parquet.",
        )
    ragged: list[pacsv.InvalidRow] = []

    def refuse_ragged(row: pacsv.InvalidRow) -> str:
        ragged.append(row)
        return "skip"

    positions = [str(position) for position in range(len(header))]
    table = pacsv.read_csv(
        path,
        # One thread, so that the row number in the message is right.
        read_options=pacsv.ReadOptions(
            use_threads=False,
            block_size=_block_bytes(path) if repair else _BLOCK_BYTES,
            column_names=positions,
            skip_rows_after_names=1,
        ),
        parse_options=pacsv.ParseOptions(
            newlines_in_values=True, invalid_row_handler=refuse_ragged
        ),
        convert_options=pacsv.ConvertOptions(
            column_types=dict.fromkeys(positions, pa.large_string()),
            strings_can_be_null=False,
            check_utf8=not repair,
        ),
    )
    if ragged and repair:
        table = _with_empty_rows(table, [row.number - 2 for row in ragged])
    elif ragged:
        row = ragged[0]
        raise UnusableFile(
            f"row {row.number} has {row.actual_columns} cells and the header {row.expected_columns}",
            "Give every row as many cells as the header; quote cells that contain commas.",
        )
    table = table.rename_columns(header)
    if not header[0].strip() and len(header) > 1:
        table = table.remove_column(0)
    return table, len(ragged)


def _block_bytes(path: Path) -> int:
    """The whole file, as far as Arrow can: no cell is too long for one block."""
    return max(_BLOCK_BYTES, min(path.stat().st_size + 1, 2**31 - 1))


def _with_empty_rows(table: pa.Table, places: Sequence[int]) -> pa.Table:
    """The table with rows of nulls, so that they have these places in the result."""
    taken = np.ones(len(table) + len(places), dtype=bool)
    taken[list(places)] = False
    source = np.cumsum(taken) - 1
    return table.take(pa.array(source, pa.int64(), mask=~taken))


def _decoded(table: pa.Table) -> tuple[pa.Table, dict[str, int]]:
    """The table with every string valid, and by column how many cells were not."""
    undecodable = {}
    for position, name in enumerate(table.column_names):
        column = table.column(position)
        if not is_words(column.type):
            continue
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            cells = pc.cast(column, pa.large_binary()).to_pylist()
            texts = [None if cell is None else cell.decode(errors="replace") for cell in cells]
            undecodable[name] = sum(
                text is not None and text.encode() != cell
                for cell, text in zip(cells, texts, strict=True)
            )
            table = table.set_column(position, name, pa.array(texts, pa.large_string()))
    return table, undecodable


def _read_parquet(path: Path) -> pa.Table:
    with pq.ParquetFile(path) as file:
        table = file.read()
    kept = [
        position
        for position, name in enumerate(table.column_names)
        if not _UNNAMED_INDEX.fullmatch(name)
    ]
    return table.select(kept)


def _explained(path: Path, error: Exception) -> UnusableFile:
    """The libraries' messages quote cells, so only their kind is passed on."""
    if isinstance(error, FileNotFoundError):
        return UnusableFile("there is no such file", "Check the path.")
    if isinstance(error, PermissionError):
        return UnusableFile("this user may not read it", "Check the file's permissions.")
    if isinstance(error, UnicodeDecodeError) or "UTF8" in str(error):
        return UnusableFile("it is not written in UTF-8", "Save it as UTF-8.")
    form = "CSV" if path.suffix.lower() == ".csv" else "Parquet"
    return UnusableFile(f"it is not a readable {form} file", "Write it again, or check the copy.")


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
