"""The hospital's own rows: read from the file that silo.yaml names, and never shown to anyone.

Errors raised here may reach the network side. They are about the file, its columns and the types it declares; no
single row or cell raises one, since whether the file can be read would then tell something about a patient.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from silo_agent.trainer.data.cells import Treated
from wire.errors import ConfigurationError
from wire.runtime.arrays import array_names, read_array
from wire.runtime.columns import UnusableFile, as_words, listed
from wire.runtime.tables import RepairedTable, read_repaired_table

Words: TypeAlias = pa.Array
"""Strings, null where a cell is empty."""


class DataSettings(BaseModel):
    """The `data:` section of silo.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Path
    """A .csv, .parquet, .npz or .npy file; relative to silo.yaml."""
    label: str = Field(min_length=1)
    """The column with the labels; for .npz the array, for .npy the file beside it."""
    patient_id: str | None = None
    """The column (array, file) that says whose row it is; without it every row is a patient."""
    features: str | None = None
    """For .npz, the array with the features, if there are several."""
    drop: tuple[str, ...] = ()
    """Columns that are no features: dates, names, remarks."""
    text_column: str | None = None
    """The column with the text, if the public set is text and calls its own differently."""


@dataclass(frozen=True, eq=False)
class PrivateData:
    """The file as it was read, before it is compared with a public set; its repr shows no row.

    `features` is a table (columns by name, without label, patient and dropped ones) or an array whose first
    axis is the row.
    """

    settings: DataSettings
    rows: int
    labels: Words = field(repr=False)
    patients: Words | None = field(repr=False)
    features: pa.Table | NDArray[np.generic] = field(repr=False)
    treated: tuple[Treated, ...] = field(default=(), repr=False)
    """Rows and cells that could not be read as they are."""


def load_private(settings: DataSettings, base: Path) -> PrivateData:
    """Reads the private file; a relative path starts at `base`. ConfigurationError says what to correct."""
    path = base / settings.path
    try:
        match path.suffix.lower():
            case ".csv" | ".parquet":
                return _from_table(settings, path)
            case ".npz":
                return _from_archive(settings, path)
            case ".npy":
                return _from_files(settings, path)
            case suffix:
                raise UnusableFile(
                    f"files ending in {suffix or 'nothing'} are not known",
                    "Use .csv or .parquet for tables and text, .npy or .npz for arrays.",
                )
    except UnusableFile as unfit:
        raise ConfigurationError(
            f"The private data {path} cannot be used: {unfit.why}.", unfit.fix
        ) from unfit


def _from_table(settings: DataSettings, path: Path) -> PrivateData:
    if settings.features is not None:
        raise UnusableFile("it is a table and has no arrays", "Remove `features` from `data`.")
    repaired = read_repaired_table(path)
    table = repaired.table
    _require_columns(settings, table.column_names)
    labels = _words(settings.label, table[settings.label])
    patients = (
        _words(settings.patient_id, table[settings.patient_id]) if settings.patient_id else None
    )
    aside = {settings.label, settings.patient_id, *settings.drop}
    features = table.select([name for name in table.column_names if name not in aside])
    return PrivateData(settings, len(table), labels, patients, features, _notes(repaired))


def _notes(repaired: RepairedTable) -> tuple[Treated, ...]:
    cells = [
        Treated(name, count, "are not UTF-8", "are read with � for what cannot be decoded")
        for name, count in repaired.undecodable.items()
    ]
    if repaired.ragged:
        why = "lie in rows with more or fewer cells than the header"
        cells.append(Treated("(all)", repaired.ragged * repaired.table.num_columns, why))
    return tuple(cells)


def _require_columns(settings: DataSettings, columns: list[str]) -> None:
    for key, names in (
        ("label", (settings.label,)),
        ("patient_id", (settings.patient_id,)),
        ("text_column", (settings.text_column,)),
        ("drop", settings.drop),
    ):
        if absent := [name for name in names if name and name not in columns]:
            raise UnusableFile(
                f"it has no column {listed(absent)}",
                f"Correct `{key}` in `data`; the columns are {listed(columns)}.",
            )


def _from_archive(settings: DataSettings, path: Path) -> PrivateData:
    _refuse_column_keys(settings)
    aside = {settings.label, settings.patient_id, *settings.drop}
    left = [name for name in array_names(path) if name not in aside]
    features = settings.features or (left[0] if len(left) == 1 else None)
    if features is None:
        raise UnusableFile(
            f"it has {len(left)} arrays besides the labels",
            f"Set `features` in `data` to one of {listed(left) or 'them'}.",
        )
    labels = read_array(path, settings.label)
    patients = read_array(path, settings.patient_id) if settings.patient_id else None
    return _from_arrays(settings, read_array(path, features), labels, patients)


def _from_files(settings: DataSettings, path: Path) -> PrivateData:
    _refuse_column_keys(settings)
    labels = _beside(path, settings.label, "label")
    patients = _beside(path, settings.patient_id, "patient_id") if settings.patient_id else None
    return _from_arrays(settings, read_array(path), labels, patients)


def _refuse_column_keys(settings: DataSettings) -> None:
    if settings.text_column is not None:
        raise UnusableFile("it is an array and has no columns", "Remove `text_column` from `data`.")


def _beside(path: Path, name: str, key: str) -> NDArray[np.generic]:
    try:
        return read_array(path.with_name(name))
    except UnusableFile as unfit:
        raise UnusableFile(
            f"the file {name} that `{key}` names cannot be used: {unfit.why}", unfit.fix
        ) from unfit


def _from_arrays(
    settings: DataSettings,
    features: NDArray[np.generic],
    labels: NDArray[np.generic],
    patients: NDArray[np.generic] | None,
) -> PrivateData:
    if features.ndim == 0:
        raise UnusableFile("its features are a single number", "The first axis must be the row.")
    for name, values in ((settings.label, labels), (settings.patient_id, patients)):
        if values is not None and values.shape != features.shape[:1]:
            raise UnusableFile(
                f"{name} has the shape {values.shape} and the features have {len(features)} rows",
                "Save one value per row, in one dimension.",
            )
    return PrivateData(
        settings,
        len(features),
        _array_words(settings.label, labels),
        None if patients is None else _array_words("patient_id", patients),
        features,
    )


def _array_words(name: str, values: NDArray[np.generic]) -> Words:
    if values.dtype.kind not in "biufU":
        raise UnusableFile(f"{name} holds {values.dtype}", "Use strings, numbers or booleans.")
    return _words(name, pa.array(np.asarray(values, dtype=values.dtype.newbyteorder("="))))


def _words(name: str, column: pa.ChunkedArray) -> Words:
    """Only blank cells count as empty here: a label space may well have a class called NA."""
    words = as_words(column, empty=("",))
    if words is None:
        raise UnusableFile(f"{name} holds {column.type}", "Use strings, numbers or booleans.")
    return words
