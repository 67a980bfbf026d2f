"""From an admin's file to the stored public set: CSV, Parquet, NPY and NPZ become one canonical form each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from wire.errors import PUBLIC_SET_INVALID, Refusal
from wire.public_content import (
    LONGEST_PROVENANCE,
    MAX_CATEGORIES,
    inspect,
    write_array,
    write_table,
)
from wire.public_file import PublicSetFolder
from wire.runtime.arrays import all_finite, read_array
from wire.runtime.columns import (
    INEXACT_FROM,
    Numbers,
    UnusableFile,
    as_numbers,
    as_text,
    as_words,
    category_column,
    folded,
    is_number,
    is_words,
    listed,
    number_column,
)
from wire.runtime.tables import read_table
from wire.schema import ELEMENT_TYPES, SetSchema

__all__ = ["ConvertedSet", "convert", "inspect"]

# Up to this many distinct words are categories however few the rows.
_FEW_CATEGORIES = 20


@dataclass(frozen=True)
class ConvertedSet:
    """A public set in its stored form: where it lies, its SHA-256, rows, bytes and schema."""

    path: Path
    digest: str
    rows: int
    size_bytes: int
    schema: SetSchema


def convert(
    source: Path,
    into: Path,
    *,
    array: str | None = None,
    text_column: str | None = None,
    drop: Sequence[str] = (),
    provenance: Mapping[str, str] | None = None,
) -> ConvertedSet:
    """Writes `source` in its stored form into the folder `into`, named by its digest.

    The digest depends on nothing but rows, columns and `provenance` (`wire.public_content.PROVENANCE`). `array` picks
    one of an NPZ file, `text_column` makes a text set of one column, `drop` leaves columns out. PUBLIC_SET_INVALID
    says what is wrong and how to mend it.
    """
    folder = PublicSetFolder(into)
    unfinished = folder.unfinished()
    try:
        if source.suffix.lower() in (".csv", ".parquet"):
            if array is not None:
                raise UnusableFile("it is a table and has no arrays", "Leave --array out.")
            batch = _batch(source, text_column, drop)
            write_table(batch.replace_schema_metadata(_said(provenance)), unfinished)
        elif source.suffix.lower() in (".npy", ".npz"):
            if text_column is not None or drop:
                raise UnusableFile(
                    "it is an array and has no columns", "Leave the column options out."
                )
            _refuse_said(_said(provenance))
            write_array(_array(source, array), unfinished)
        else:
            raise UnusableFile(
                f"files ending in {source.suffix or 'nothing'} are not known",
                "Use .csv or .parquet for tables and text, .npy or .npz for arrays.",
            )
        rows, schema = inspect(unfinished)
        digest = folder.adopt(unfinished)
    except UnusableFile as unfit:
        raise Refusal(PUBLIC_SET_INVALID, path=source, why=unfit.why, fix=unfit.fix) from unfit
    finally:
        unfinished.unlink(missing_ok=True)
    path = folder.path(digest)
    return ConvertedSet(path, digest, rows, path.stat().st_size, schema)


def _said(provenance: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """What is said of the set, None if nothing is."""
    said = {key: value for key, value in (provenance or {}).items() if value}
    for key, value in said.items():
        if len(value) > LONGEST_PROVENANCE or not value.isprintable():
            raise UnusableFile(
                f"its {key} is longer than {LONGEST_PROVENANCE} characters or not one line of text",
                "Shorten it, or give a link.",
            )
    return said or None


def _refuse_said(said: Mapping[str, str] | None) -> None:
    if said is not None:
        raise UnusableFile(
            f"an array file has no place for its {' and '.join(said)}",
            "Leave the options out, and tell hospitals where you announce the task.",
        )


def _batch(source: Path, text_column: str | None, drop: Sequence[str]) -> pa.RecordBatch:
    table = _selected(read_table(source), text_column, drop)
    if text_column:
        columns = {text_column: _text(text_column, table[text_column])}
    else:
        alone = table.num_columns == 1
        columns = {name: _stored(name, table[name], alone) for name in table.column_names}
    schema = pa.schema(
        [pa.field(name, values.type, values.null_count > 0) for name, values in columns.items()]
    )
    return pa.record_batch(list(columns.values()), schema=schema)


def _selected(table: pa.Table, text_column: str | None, drop: Sequence[str]) -> pa.Table:
    """The columns to publish: all but those dropped, or the one that holds the text."""
    wanted = [*drop, *([text_column] if text_column else [])]
    if absent := [name for name in wanted if name not in table.column_names]:
        raise UnusableFile(
            f"it has no column {listed(absent)}", f"Its columns are {listed(table.column_names)}."
        )
    table = table.drop_columns(list(drop))
    if not table.num_columns:
        raise UnusableFile("no column is left", "Drop fewer columns.")
    if not len(table):
        raise UnusableFile("it has no rows", "Give it at least one row.")
    if text_column:
        if text_column in drop:
            raise UnusableFile(f"its text column {text_column} is dropped", "Keep it.")
        table = table.select([text_column])
    return table


def _text(name: str, column: pa.ChunkedArray) -> pa.Array:
    text = as_text(column)
    if text is None:
        raise UnusableFile(f"its column {name} does not hold text", "Name a column of strings.")
    return _filled(name, text)


def _stored(name: str, column: pa.ChunkedArray, alone: bool) -> pa.Array:
    """The stored form of one column: float64, coded categories, or text if it is the only one."""
    kind = column.type
    coded = pa.types.is_dictionary(kind)
    if not coded and (is_number(kind) or is_words(kind)):
        numbers = as_numbers(column)
        if numbers is not None and not numbers.not_numbers.any():
            return _filled(name, _checked_numbers(name, numbers))
    words = as_words(column)
    if words is None:
        raise UnusableFile(
            f"its column {name} holds {kind}",
            f"Turn it into numbers or categories, or leave it out with --drop {name}.",
        )
    _filled(name, words)
    words = folded(words, pc.unique(words).drop_null().to_pylist())
    categories = sorted(pc.unique(words).drop_null().to_pylist())
    if alone and is_words(kind) and not set(categories) <= {"true", "false"}:
        return as_text(column)
    _require_few(name, len(categories), len(words), coded)
    return category_column(words, categories)


def _require_few(name: str, categories: int, rows: int, coded: bool) -> None:
    crowded = categories > max(_FEW_CATEGORIES, rows // 2) and not coded
    if crowded or categories > MAX_CATEGORIES:
        raise UnusableFile(
            f"its column {name} has {categories} different values in {rows} rows,"
            " too many for categories",
            f"Leave it out with --drop {name}, or make it a text set with --text-column {name}.",
        )


def _filled(name: str, values: pa.Array) -> pa.Array:
    if values.null_count == len(values):
        raise UnusableFile(f"its column {name} is empty in every row", f"Use --drop {name}.")
    return values


def _checked_numbers(name: str, numbers: Numbers) -> pa.Array:
    if numbers.infinite.any():
        raise UnusableFile(f"its column {name} has infinite numbers", "Leave those cells empty.")
    if numbers.inexact.any():
        raise UnusableFile(
            f"its column {name} has whole numbers of {INEXACT_FROM} and more, like identifiers",
            f"Leave it out with --drop {name}.",
        )
    return number_column(numbers)


def _array(source: Path, name: str | None) -> NDArray[np.generic]:
    array = read_array(source, name)
    if array.dtype.name not in ELEMENT_TYPES:
        raise UnusableFile(
            f"its elements are {array.dtype}", f"Convert them to one of {', '.join(ELEMENT_TYPES)}."
        )
    if array.ndim == 0:
        raise UnusableFile("it is a single number", "Save an array whose first axis is the row.")
    if not array.size:
        raise UnusableFile("it is empty", "Save an array with at least one row.")
    if not all_finite(array):
        raise UnusableFile(
            "it has NaN or infinite elements", "Replace them, or leave those rows out."
        )
    return array
