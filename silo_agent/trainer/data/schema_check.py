"""Whether the private rows fit a task: each misfit is one sentence, and nothing is trained before all are gone."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from silo_agent.trainer.data.label_space import label_indices
from silo_agent.trainer.data.private_data import PrivateData
from silo_agent.trainer.data.unit_keys import unit_keys
from silo_agent.trainer.models.protocol import Reads
from wire.errors import ConfigurationError
from wire.runtime.arrays import all_finite
from wire.runtime.columns import (
    EMPTY_CELLS,
    as_numbers,
    as_text,
    as_words,
    category_column,
    folded,
    is_number,
    listed,
    number_column,
)
from wire.schema import Column, ColumnType, SetKind, SetSchema

_EXAMPLES = 3


@dataclass(frozen=True)
class Misfit:
    """One thing that does not fit.

    `sentence` names columns and counts and may be shown by the network side. `private_detail` may quote up to
    three values and is for the private side's own log. One that is not `fatal` is information only.
    """

    sentence: str
    private_detail: str = field(default="", repr=False)
    fatal: bool = True


@dataclass(frozen=True, eq=False)
class PrivateRows:
    """Rows that fit: features in the public set's stored form, class indices, and whose row each is.

    `features` is a record batch with the public columns in order, or an array (n, *row_shape); `labels` and
    `patients` are int64 of shape (n,), patients as `unit_keys` numbers them.
    """

    features: pa.RecordBatch | NDArray[np.generic] = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)
    patients: NDArray[np.int64] = field(repr=False)


def check(
    private: PrivateData,
    schema: SetSchema,
    labels: Sequence[str],
    *,
    known: Sequence[int] | None = None,
    reads: Reads = "features",
) -> list[Misfit]:
    """Everything that keeps the private rows from a task, and what is good to know; never raises.

    `known` are the indices of the labels this silo is said to know, None for all; `reads` is what its learner reads.
    """
    if not private.rows:
        return [Misfit("The private data have no rows.")]
    return list(
        chain(
            _readable(schema, reads),
            _features(private, schema),
            _labels(private, labels, known),
            _patients(private),
        )
    )


def prepare(private: PrivateData, schema: SetSchema, labels: Sequence[str]) -> PrivateRows:
    """The private rows in the public set's form; ConfigurationError if `check` finds a fatal misfit."""
    for misfit in check(private, schema, labels):
        if misfit.fatal:
            raise ConfigurationError(misfit.sentence, "Correct the private data or silo.yaml.")
    return PrivateRows(
        _stored(private, schema), label_indices(private.labels, labels), unit_keys(private)
    )


def stored_rows(rows: Any, schema: SetSchema) -> pa.RecordBatch | NDArray[np.generic]:
    """Rows without labels in the public set's form; ConfigurationError if they do not fit.

    For tables and text `rows` is whatever Arrow reads as a table (a DataFrame, an Arrow table): columns are
    matched by name and further ones ignored. For arrays it has the shape (n, *row_shape).
    """
    if schema.kind is SetKind.ARRAY:
        array = np.asarray(rows)
        _refuse(_array(array, schema))
        return np.asarray(array, dtype=schema.element_type)
    table = _as_table(rows, schema)
    for name in schema.names:
        if (times := table.column_names.count(name)) != 1:
            raise ConfigurationError(
                f"The rows have {times or 'no'} columns named {name}.",
                "Give each column of the public set once.",
            )
    for column in schema.columns:
        _refuse(_cells(table[column.name], column))
    return _batch(table, schema)


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


def _stored(private: PrivateData, schema: SetSchema) -> pa.RecordBatch | NDArray[np.generic]:
    if isinstance(private.features, np.ndarray):
        return np.asarray(private.features, dtype=schema.element_type)
    return _batch(_named(private.features, private.settings.text_column, schema), schema)


def _batch(table: pa.Table, schema: SetSchema) -> pa.RecordBatch:
    columns = [_stored_column(table[column.name], column) for column in schema.columns]
    return pa.record_batch(columns, names=list(schema.names))


def _stored_column(values: pa.ChunkedArray, column: Column) -> pa.Array:
    if column.type is ColumnType.NUMBER:
        numbers = as_numbers(values)
        return None if numbers is None else number_column(numbers)
    if column.type is ColumnType.CATEGORY:
        return category_column(folded(as_words(values), column.categories), column.categories)
    return as_text(values)


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
        for column in schema.columns:
            if column.name in table.column_names:
                yield from _cells(table[column.name], column)


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
        return
    # As stored: a float64 may be beyond the range of the public float32.
    with np.errstate(over="ignore"):
        array = np.asarray(array, dtype=wanted)
    if not all_finite(array):
        rows = int((~np.isfinite(array).reshape(len(array), -1).all(axis=1)).sum())
        yield Misfit(f"{_rows(rows)} NaN or infinite elements; the public set has none.")


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


def _cells(values: pa.ChunkedArray, column: Column) -> Iterator[Misfit]:
    match column.type:
        case ColumnType.NUMBER:
            yield from _number_cells(values, column)
        case ColumnType.CATEGORY:
            yield from _category_cells(values, column)
        case ColumnType.TEXT:
            text = as_text(values)
            if text is None:
                yield Misfit(f"Column {column.name} must hold text; it holds {values.type}.")
            else:
                yield from _empty(text.null_count, column)


def _number_cells(values: pa.ChunkedArray, column: Column) -> Iterator[Misfit]:
    numbers = as_numbers(values)
    if numbers is None:
        yield Misfit(f"Column {column.name} must hold numbers; it holds {values.type}.")
        return
    words = as_words(values)
    if words is not None and (wrong := int(numbers.not_numbers.sum())):
        yield Misfit(
            f"Column {column.name} must hold numbers; {wrong} of its {len(values)} cells do not.",
            _examples(column.name, words.filter(pa.array(numbers.not_numbers))),
        )
    if infinite := int(numbers.infinite.sum()):
        yield Misfit(f"Column {column.name} is infinite in {_count(infinite)}.")
    yield from _empty(int(numbers.empty.sum()), column)


def _category_cells(values: pa.ChunkedArray, column: Column) -> Iterator[Misfit]:
    words = as_words(values)
    if words is None:
        yield Misfit(f"Column {column.name} must hold categories; it holds {values.type}.")
        return
    words = folded(words, column.categories)
    known = pc.is_in(words, value_set=pa.array(column.categories, pa.large_string()))
    unseen = words.filter(pc.and_(pc.invert(known), pc.is_valid(words)))
    if len(unseen) and len(unseen) == len(words) - words.null_count and is_number(values.type):
        yield Misfit(
            f"Column {column.name} must hold categories; it holds numbers.",
            _examples(column.name, unseen),
        )
    elif len(unseen):
        yield Misfit(
            f"Column {column.name} has {_distinct(unseen, 'category', 'categories')} that the public set lacks, in {_count(len(unseen))}.",
            _examples(column.name, unseen),
        )
    yield from _empty(words.null_count, column)


def _empty(count: int, column: Column) -> Iterator[Misfit]:
    if count and not column.nullable:
        yield Misfit(
            f"Column {column.name} is empty (NaN) in {_count(count)}; in the public set it never is."
        )


def _labels(
    private: PrivateData, labels: Sequence[str], known: Sequence[int] | None
) -> Iterator[Misfit]:
    name = private.settings.label
    indices = label_indices(private.labels, labels)
    unmatched = private.labels.filter(pa.array(indices < 0))
    blank = pc.is_in(unmatched, value_set=pa.array(EMPTY_CELLS, pa.large_string()))
    unknown = unmatched.filter(pc.and_(pc.invert(blank), pc.is_valid(unmatched)))
    if empty := len(unmatched) - len(unknown):
        yield Misfit(f"The label {name} is empty in {_count(empty)}.")
    if len(unknown):
        yield Misfit(
            f"The label {name} has {_distinct(unknown, 'value', 'values')} outside the task's label space, in {_count(len(unknown))}.",
            f"{_examples(name, unknown)}; the task has {listed(labels)}",
        )
    if known is not None:
        # By the task's whole label space first: 01 may be a class of its own, and not this silo's 1.
        strange = private.labels.filter(pa.array((indices >= 0) & ~np.isin(indices, known)))
        if len(strange):
            yield Misfit(
                f"The label {name} has {_distinct(strange, 'value', 'values')} outside the label space the task has for this silo, in {_count(len(strange))}.",
                f"{_examples(name, strange)}; this silo has {listed([labels[index] for index in known])}",
            )


def _patients(private: PrivateData) -> Iterator[Misfit]:
    if private.patients is not None and (count := private.patients.null_count):
        yield Misfit(f"The patient id {private.settings.patient_id} is empty in {_count(count)}.")


def _examples(name: str, cells: pa.Array) -> str:
    shown = ", ".join(repr(cell) for cell in pc.unique(cells)[:_EXAMPLES].to_pylist())
    return f"{name}: for example {shown}"


def _distinct(cells: pa.Array, one: str, several: str) -> str:
    count = pc.count_distinct(cells).as_py()
    return f"{count} {one if count == 1 else several}"


def _columns(names: Sequence[str]) -> str:
    return f"the column{'s' if len(names) > 1 else ''} {listed(names)}"


def _count(rows: int) -> str:
    return f"{rows} row{'s' if rows != 1 else ''}"


def _rows(rows: int) -> str:
    return f"{_count(rows)} {'has' if rows == 1 else 'have'}"
