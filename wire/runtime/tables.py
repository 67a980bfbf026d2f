"""Reads CSV and Parquet files into Arrow tables, strictly or so that no single row or cell is in the way.

No message contains a cell's value.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from wire.runtime.columns import UnusableFile, is_words, listed

_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
# A quoted cell must fit into one block; notes of several megabytes do.
_BLOCK_BYTES = 64 << 20


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


def _read_csv(path: Path, repair: bool) -> tuple[pa.Table, int]:
    """The table and, where they are repaired, how many rows are ragged."""
    header = _header(path, repair)
    ragged: list[pacsv.InvalidRow] = []

    def set_aside(row: pacsv.InvalidRow) -> str:
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
        parse_options=pacsv.ParseOptions(newlines_in_values=True, invalid_row_handler=set_aside),
        convert_options=pacsv.ConvertOptions(
            column_types=dict.fromkeys(positions, pa.large_string()),
            strings_can_be_null=False,
            check_utf8=not repair,
        ),
    )
    if ragged and repair:
        table = _with_empty_rows(table, [row.number - 2 for row in ragged])
    elif ragged:
        raise _ragged(ragged[0])
    table = table.rename_columns(header)
    if not header[0].strip() and len(header) > 1:
        table = table.remove_column(0)
    return table, len(ragged)


def _header(path: Path, repair: bool) -> list[str]:
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
    return header


def _ragged(row: pacsv.InvalidRow) -> UnusableFile:
    return UnusableFile(
        f"row {row.number} has {row.actual_columns} cells and the header {row.expected_columns}",
        "Give every row as many cells as the header; quote cells that contain commas.",
    )


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
