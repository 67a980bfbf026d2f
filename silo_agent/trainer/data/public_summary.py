"""What a public set is, for the officer who is asked to vote on it: its columns, and whether the hospital's own rows are in it.

All of it is shown at home. Names and categories come from outside: they are quoted, so they cannot steer a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from silo_agent.trainer.data.features import Encoder, Rows
from wire.public_content import PROVENANCE, inspect, open_array, open_table, provenance
from wire.schema import Column, ColumnType, SetKind, SetSchema

_SHOWN: Final = 8
"""Categories; more are only counted."""
_COLUMNS: Final = 200
_LONGEST: Final = 500
"""Characters of a word."""


def summary(path: Path) -> list[str]:
    """A line on the set and one on each column; PUBLIC_SET_INVALID if the file is none."""
    rows, schema = inspect(path)
    if schema.kind is SetKind.ARRAY:
        array = open_array(path)
        return [
            *_provenance(path),
            f"{rows} rows of shape {schema.row_shape}, {schema.element_type}, "
            f"from {float(array.min()):g} to {float(array.max()):g}",
        ]
    table = open_table(path)
    lines = [*_provenance(path), f"{rows} rows, {_counted(len(schema.columns), 'column')}"]
    lines += [_column(table[column.name], column) for column in schema.columns[:_COLUMNS]]
    if (more := len(schema.columns) - _COLUMNS) > 0:
        lines.append(f"and {_counted(more, 'further column')}")
    return lines


def overlap(path: Path, schema: SetSchema, private: Rows) -> tuple[int, int]:
    """How many private rows equal a public row once both are encoded, and how many public rows equal a private one.

    `private` is in the public set's stored form.
    """
    encoder, texts = Encoder.from_public(schema, path), schema.kind is SetKind.TEXT
    ours = list(_keys(encoder.encode(private, texts=texts)))
    theirs = list(_keys(encoder.public(texts=texts)))
    return _shared(ours, set(theirs)), _shared(theirs, set(ours))


def _provenance(path: Path) -> list[str]:
    said = provenance(path)
    return [f"{key}: {_quoted(said[key]) if key in said else 'not said'}" for key in PROVENANCE]


def _shared(keys: list[bytes], others: set[bytes]) -> int:
    return sum(key in others for key in keys)


def _keys(features: NDArray[np.generic]) -> Iterator[bytes]:
    for row in features:
        yield row.encode() if isinstance(row, str) else np.ascontiguousarray(row).tobytes()


def _column(values: pa.Array, column: Column) -> str:
    empty = f", {_counted(values.null_count, 'empty cell')}" if values.null_count else ""
    return f"{_quoted(column.name)}: {_content(values, column)}{empty}"


def _content(values: pa.Array, column: Column) -> str:
    match column.type:
        case ColumnType.NUMBER:
            span = pc.min_max(values).as_py()
            return f"numbers from {span['min']:g} to {span['max']:g}"
        case ColumnType.CATEGORY:
            shown = ", ".join(map(_quoted, column.categories[:_SHOWN]))
            more = "" if len(column.categories) <= _SHOWN else ", …"
            count = len(column.categories)
            return f"{count} categor{'y' if count == 1 else 'ies'}: {shown}{more}"
        case ColumnType.TEXT:
            longest = pc.max(pc.utf8_length(values)).as_py()
            return f"texts of up to {_counted(longest, 'character')}"


def _quoted(word: str) -> str:
    return ascii(word if len(word) <= _LONGEST else f"{word[:_LONGEST]}…")


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"
