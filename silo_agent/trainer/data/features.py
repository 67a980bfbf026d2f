"""Rows as numbers for the learners, by an encoding learned from the public set alone; or as the texts they are.

Nothing private shapes the encoding, so it costs no privacy, and a row is the same vector on every silo.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer

from wire.errors import PUBLIC_SET_INVALID, ConfigurationError, Refusal
from wire.public_content import inspect, open_array, open_table
from wire.schema import Column, ColumnType, SetKind, SetSchema

TEXT_FEATURES = 1024
# Single characters count as words: some scripts and many codes have no longer ones.
_WORD = r"(?u)\b\w+\b"
LARGEST = 1e38
"""Numbers further from 0 count as this far: differences of two are still a float32, and squares a float64."""

Rows: TypeAlias = pa.RecordBatch | NDArray[np.generic]
"""Rows in the public set's stored form: what its file holds, or `PrivateRows.features`."""
Features: TypeAlias = NDArray[Any]
"""Encoded rows (n, d); float64 for tables, float32 for text and arrays. Or texts, (n,) of str objects."""


@dataclass(frozen=True, eq=False)
class Encoder:
    """Turns stored rows into features: deterministic, and the same for public and private rows.

    `names` has one entry per feature of a flat row. `medians` holds the public median of each number column.
    """

    schema: SetSchema
    path: Path
    names: tuple[str, ...]
    medians: dict[str, float] = field(default_factory=dict)
    words: TfidfVectorizer | None = field(default=None, repr=False)

    @classmethod
    def from_public(
        cls, schema: SetSchema, path: Path, *, text_features: int = TEXT_FEATURES
    ) -> Encoder:
        """Learns medians or words from the public file; PUBLIC_SET_INVALID if it has another schema."""
        _, actual = inspect(path)
        if actual != schema:
            why = "its rows have another form than the task says"
            raise Refusal(PUBLIC_SET_INVALID, path=path.name, why=why, fix="Fetch it again.")
        if schema.kind is SetKind.ARRAY:
            return cls(schema, path, _element_names(schema.row_shape))
        rows = open_table(path)
        if schema.kind is SetKind.TEXT:
            words = _fitted_words(rows.column(0), text_features)
            return cls(schema, path, tuple(words.get_feature_names_out()), words=words)
        medians = {
            column.name: _median(rows[column.name])
            for column in schema.columns
            if column.type is ColumnType.NUMBER
        }
        names = tuple(name for column in schema.columns for name in _feature_names(column))
        return cls(schema, path, names, medians)

    def public(self, *, flat: bool = True, texts: bool = False) -> Features:
        """The public set's features, row by row in the order of the ballots."""
        array = self.schema.kind is SetKind.ARRAY
        stored = open_array(self.path) if array else open_table(self.path)
        return self.encode(stored, flat=flat, texts=texts)

    def encode(self, rows: Rows, *, flat: bool = True, texts: bool = False) -> Features:
        """Features of rows in stored form; `flat=False` keeps the shape of an array's rows.

        `texts=True` gives the texts themselves, an empty one for an empty cell; ConfigurationError if the rows have none.
        """
        if texts:
            return self._texts(rows)
        if isinstance(rows, np.ndarray):
            scaled = _scaled(rows)
            return scaled.reshape(len(rows), -1) if flat else scaled
        if self.words is not None:
            return np.asarray(self.words.transform(self._texts(rows)).todense(), dtype=np.float32)
        features = np.zeros((rows.num_rows, len(self.names)), dtype=np.float64)
        start = 0
        for column in self.schema.columns:
            stop = start + len(_feature_names(column))
            self._fill(features[:, start:stop], rows[column.name], column)
            start = stop
        return features

    def _texts(self, rows: Rows) -> NDArray[np.object_]:
        if self.schema.kind is not SetKind.TEXT or isinstance(rows, np.ndarray):
            raise ConfigurationError(
                "The learner reads texts, and the public set is not text.",
                "Choose a learner of tables or images in silo.yaml.",
            )
        # Objects: strings of one width would all take the room of the longest.
        return np.array(rows.column(0).fill_null("").to_pylist(), dtype=object)

    def _fill(self, into: NDArray[np.float64], values: pa.Array, column: Column) -> None:
        if column.type is ColumnType.NUMBER:
            filled = values.fill_null(self.medians[column.name]).to_numpy(zero_copy_only=False)
            into[:, 0] = np.clip(filled, -LARGEST, LARGEST)
            if column.nullable:
                into[:, 1] = values.is_null().to_numpy(zero_copy_only=False)
            return
        codes = values.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        named = np.flatnonzero(codes >= 0)
        into[named, codes[named]] = 1.0


def _feature_names(column: Column) -> tuple[str, ...]:
    """A number and, where the public set has empty cells, whether it is missing; or one name per category.

    An empty number is the public median; an empty category cell is no category at all: its features are all 0.
    """
    if column.type is ColumnType.CATEGORY:
        return tuple(f"{column.name} = {category}" for category in column.categories)
    return (column.name, f"{column.name} missing") if column.nullable else (column.name,)


def _element_names(shape: tuple[int, ...]) -> tuple[str, ...]:
    return tuple("_".join(map(str, index)) or "0" for index in np.ndindex(*shape))


def _median(values: pa.Array) -> float:
    return float(np.median(pc.drop_null(values).to_numpy()))


def _fitted_words(texts: pa.Array, most: int) -> TfidfVectorizer:
    words = TfidfVectorizer(
        max_features=most, dtype=np.float32, sublinear_tf=True, token_pattern=_WORD
    )
    try:
        return words.fit(texts.drop_null().to_pylist())
    except ValueError as error:
        raise ConfigurationError(
            "The public texts contain no words.", "Ask the admin for another public set."
        ) from error


def _scaled(rows: NDArray[Any]) -> NDArray[np.float32]:
    """float32, finite; integers are divided by the largest their type holds, so 255 of uint8 becomes 1."""
    if rows.dtype.kind in "iu":
        scaled: NDArray[np.float32] = np.divide(rows, np.iinfo(rows.dtype).max, dtype=np.float32)
        return scaled
    if rows.dtype.kind == "f":
        # NaN is neither above nor below anything; what is left of it counts as 0.
        rows = np.nan_to_num(np.clip(rows, -LARGEST, LARGEST, dtype=np.float64), nan=0.0)
    return np.asarray(rows, dtype=np.float32)
