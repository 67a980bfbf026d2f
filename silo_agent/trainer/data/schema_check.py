"""Whether the private rows have the form a task asks for, and the rows in that form.

Only structure keeps a silo out of a task: files, columns and the types that a file declares. It is the same whoever
the patients are. What single cells hold decides nothing: those that do not fit count as empty (`cells`), rows whose
label is not one of the task's teach nothing, and the patients they belong to are counted all the same.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from silo_agent.trainer.data.cells import Treated, holds, stored_array, stored_column, treated
from silo_agent.trainer.data.label_space import UNUSABLE, label_indices
from silo_agent.trainer.data.private_data import PrivateData
from silo_agent.trainer.data.unit_keys import unit_keys
from silo_agent.trainer.models.protocol import Reads
from wire.errors import ConfigurationError
from wire.runtime.columns import EMPTY_CELLS, listed
from wire.schema import ColumnType, SetKind, SetSchema


@dataclass(frozen=True)
class Misfit:
    """One thing about the form of the data that does not fit; it names files, columns and types, never a cell.

    One that is not `fatal` is information only.
    """

    sentence: str
    fatal: bool = True


@dataclass(frozen=True, eq=False)
class PrivateRows:
    """Rows in the public set's stored form, class indices, and whose row each is.

    `features` is a record batch with the public columns in order, or an array (n, *row_shape); `labels` and
    `patients` are int64 of shape (n,), labels -1 (`UNUSABLE`) where a row teaches nothing, patients as `unit_keys`
    numbers them.
    """

    features: pa.RecordBatch | NDArray[np.generic] = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)
    patients: NDArray[np.int64] = field(repr=False)
    treated: tuple[Treated, ...] = field(default=(), repr=False)
    """Cells that were not taken as they are. For the hospital's own eyes."""


def check(private: PrivateData, schema: SetSchema, *, reads: Reads = "features") -> list[Misfit]:
    """Everything about their form that keeps the private rows from a public set, and what is good to know; never raises.

    Looks at no cell. `reads` is what the silo's learner reads.
    """
    if not private.rows:
        return [Misfit("The private data have no rows.")]
    return list(chain(_readable(schema, reads), _features(private, schema)))


def prepare(
    private: PrivateData,
    schema: SetSchema,
    labels: Sequence[str],
    known: Collection[int] | None = None,
) -> PrivateRows:
    """The private rows in the public set's form; ConfigurationError if `check` finds a fatal misfit.

    `known` are the indices of the labels this silo is said to know, None for all.
    """
    for misfit in check(private, schema):
        if misfit.fatal:
            raise ConfigurationError(misfit.sentence, "Correct the private data or silo.yaml.")
    features, notes = _stored(private, schema)
    indices, unusable = _labels(private, labels, known)
    everything = (*private.treated, *notes, *unusable, *_nameless(private))
    return PrivateRows(features, indices, unit_keys(private), everything)


def stored_rows(rows: Any, schema: SetSchema) -> pa.RecordBatch | NDArray[np.generic]:
    """Rows without labels in the public set's form; ConfigurationError if one does not fit: they stay at home.

    For tables and text `rows` is whatever Arrow reads as a table (a DataFrame, an Arrow table): columns are
    matched by name and further ones ignored. For arrays it has the shape (n, *row_shape).
    """
    if schema.kind is SetKind.ARRAY:
        array = np.asarray(rows)
        _refuse(_array(array, schema))
        stored, notes = stored_array(array, schema.element_type)
        _refuse(Misfit(note.sentence) for note in notes)
        return stored
    table = _as_table(rows, schema)
    for name in schema.names:
        if (times := table.column_names.count(name)) != 1:
            raise ConfigurationError(
                f"The rows have {times or 'no'} columns named {name}.",
                "Give each column of the public set once.",
            )
    _refuse(_types(table, schema))
    batch, notes = _batch(table, schema)
    _refuse(Misfit(note.sentence) for note in notes)
    return batch


def _as_table(rows: Any, schema: SetSchema) -> pa.Table:
    """The wanted columns alone: what is ignored need not even be something Arrow can hold."""
    # Imported here because only predicting needs it and the trainer starts faster without.
    import pandas as pd

    try:
        if isinstance(rows, pd.DataFrame):
            wanted = [str(name).strip() in schema.names for name in rows.columns]
            rows = rows.loc[:, wanted].rename(columns=lambda name: str(name).strip())
        table = pa.table(rows)
    # Arrow's own message may quote a cell.
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"The rows are not a table ({type(error).__name__}).",
            f"Give a DataFrame with the columns {listed(schema.names)}.",
        ) from None
    return table.rename_columns([name.strip() for name in table.column_names])


def _refuse(misfits: Iterator[Misfit]) -> None:
    for misfit in misfits:
        raise ConfigurationError(misfit.sentence, "Correct the rows.")


def _stored(
    private: PrivateData, schema: SetSchema
) -> tuple[pa.RecordBatch | NDArray[np.generic], list[Treated]]:
    if isinstance(private.features, np.ndarray):
        return stored_array(private.features, schema.element_type)
    return _batch(_named(private.features, private.settings.text_column, schema), schema)


def _batch(table: pa.Table, schema: SetSchema) -> tuple[pa.RecordBatch, list[Treated]]:
    found = [stored_column(table[column.name], column) for column in schema.columns]
    batch = pa.record_batch([values for values, _ in found], names=list(schema.names))
    return batch, [note for _, notes in found for note in notes]


def _named(table: pa.Table, text_column: str | None, schema: SetSchema) -> pa.Table:
    """For text, the one column wanted, under the public name; for tables, all columns."""
    if schema.kind is SetKind.TEXT and text_column is not None:
        return table.select([text_column]).rename_columns(list(schema.names))
    if schema.kind is SetKind.TEXT:
        return table.select([name for name in schema.names if name in table.column_names])
    return table


def _readable(schema: SetSchema, reads: Reads) -> Iterator[Misfit]:
    if reads == "texts" and schema.kind is not SetKind.TEXT:
        yield Misfit(
            f"The learner that silo.yaml names reads texts, and the public set is {_KINDS[schema.kind]}."
        )


def _features(private: PrivateData, schema: SetSchema) -> Iterator[Misfit]:
    form = "an array" if isinstance(private.features, np.ndarray) else "a table"
    if (schema.kind is SetKind.ARRAY) != (form == "an array"):
        yield Misfit(f"The public set is {_KINDS[schema.kind]} and the private data are {form}.")
    elif isinstance(private.features, np.ndarray):
        yield from _array(private.features, schema)
    else:
        table = _named(private.features, private.settings.text_column, schema)
        yield from _names(private, table.column_names, schema)
        yield from _types(table, schema)


_KINDS = {SetKind.TABLE: "a table", SetKind.TEXT: "text", SetKind.ARRAY: "an array"}


def _array(array: NDArray[np.generic], schema: SetSchema) -> Iterator[Misfit]:
    if array.shape[1:] != schema.row_shape:
        yield Misfit(
            f"A private row has the shape {array.shape[1:]} and a public row {schema.row_shape}."
        )
    wanted = np.dtype(schema.element_type)
    # Floats of any width mean the same; 0..255 and 0..1 do not, and nothing but the type tells them apart.
    if array.dtype != wanted and not (array.dtype.kind == wanted.kind == "f"):
        yield Misfit(
            f"The private elements are {array.dtype.name} and the public ones {wanted.name}."
        )


def _names(private: PrivateData, names: Sequence[str], schema: SetSchema) -> Iterator[Misfit]:
    aside = {private.settings.label: "the label", private.settings.patient_id: "the patient id"}
    for name in filter(aside.__contains__, schema.names):
        yield Misfit(
            f"Column {name} is {aside[name]} here and a feature of the public set; ask the admin to publish the set without it."
        )
    if missing := _difference(schema.names, {*names, *aside}):
        yield Misfit(f"The private data lack {_columns(missing)} of the public set.")
    if extra := _difference(names, schema.names):
        yield Misfit(
            f"The private data have {_columns(extra)} that the public set lacks; name what is no feature under `drop` in silo.yaml."
        )
    if not missing and not extra and list(names) != list(schema.names):
        yield Misfit(
            "The private columns are in another order than the public ones; they are matched by name.",
            fatal=False,
        )


def _difference(names: Sequence[str], others: Container[str | None]) -> list[str]:
    return [name for name in names if name not in others]


_WANTED = {
    ColumnType.NUMBER: "numbers",
    ColumnType.CATEGORY: "categories",
    ColumnType.TEXT: "text",
}


def _types(table: pa.Table, schema: SetSchema) -> Iterator[Misfit]:
    """By the types that the file declares; every cell of a CSV is a string, which may be any of them."""
    for column in schema.columns:
        if column.name in table.column_names and not holds(table[column.name], column):
            kind = table[column.name].type
            yield Misfit(f"Column {column.name} must hold {_WANTED[column.type]}; it holds {kind}.")


def _labels(
    private: PrivateData, labels: Sequence[str], known: Collection[int] | None
) -> tuple[NDArray[np.int64], list[Treated]]:
    """(n,) class indices, -1 for rows that teach nothing, and how many those are."""
    indices = label_indices(private.labels, labels)
    blank = pc.is_in(private.labels, value_set=pa.array(EMPTY_CELLS, pa.large_string()))
    empty = (indices < 0) & np.asarray(
        pc.or_(pc.fill_null(blank, False), pc.is_null(private.labels)), dtype=bool
    )
    # By the task's whole label space first: 01 may be a class of its own, and not this silo's 1.
    foreign = (indices >= 0) & ~np.isin(
        indices, list(range(len(labels)) if known is None else known)
    )
    words, name = private.labels, private.settings.label
    why = "have a label outside the task's label space"
    notes = [
        *treated(name, empty, "have no label", taken_as=_TEACH_NOTHING),
        *treated(name, (indices < 0) & ~empty, why, words, _TEACH_NOTHING),
        *treated(name, foreign, f"{why} for this silo", words, _TEACH_NOTHING),
    ]
    return np.where(foreign, UNUSABLE, indices), notes


_TEACH_NOTHING = "belong to rows that teach nothing and whose patients are counted all the same"


def _nameless(private: PrivateData) -> list[Treated]:
    """How many rows have no patient id. They are one patient together: none is protected less for it."""
    if private.patients is None or private.settings.patient_id is None:
        return []
    nameless = np.asarray(pc.is_null(private.patients), dtype=bool)
    why, taken_as = "have no patient id", "count as one patient together"
    return list(treated(private.settings.patient_id, nameless, why, taken_as=taken_as))


def _columns(names: Sequence[str]) -> str:
    return f"the column{'s' if len(names) > 1 else ''} {listed(names)}"
