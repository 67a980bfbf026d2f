"""What one row of a public set looks like: the form every hospital's private data must have."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from wire.consilium.v1 import registry_pb2
from wire.errors import MESSAGE_MALFORMED, Refusal

ELEMENT_TYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64"),
)


class SetKind(StrEnum):
    """What kind of thing one row is."""

    TABLE = "table"
    TEXT = "text"
    ARRAY = "array"


class ColumnType(StrEnum):
    """What values a column holds."""

    NUMBER = "number"
    CATEGORY = "category"
    TEXT = "text"


_KINDS = {
    SetKind.TABLE: registry_pb2.SET_KIND_TABLE,
    SetKind.TEXT: registry_pb2.SET_KIND_TEXT,
    SetKind.ARRAY: registry_pb2.SET_KIND_ARRAY,
}
_TYPES = {
    ColumnType.NUMBER: registry_pb2.COLUMN_TYPE_NUMBER,
    ColumnType.CATEGORY: registry_pb2.COLUMN_TYPE_CATEGORY,
    ColumnType.TEXT: registry_pb2.COLUMN_TYPE_TEXT,
}
_KIND_OF = {number: kind for kind, number in _KINDS.items()}
_TYPE_OF = {number: kind for kind, number in _TYPES.items()}


class Column(BaseModel):
    """One column: its name, what it holds, its sorted categories, and whether cells may be empty."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1)]
    type: ColumnType
    categories: tuple[str, ...] = ()
    nullable: bool = False

    @model_validator(mode="after")
    def _categories_fit(self) -> Self:
        if (self.type is ColumnType.CATEGORY) != bool(self.categories):
            raise ValueError(
                "a category column has categories, and only a category column has them"
            )
        if list(self.categories) != sorted(set(self.categories)):
            raise ValueError("categories are sorted and each occurs once")
        return self


class SetSchema(BaseModel):
    """The form of a row: columns for tables and text, `row_shape` and `element_type` for arrays."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: SetKind
    columns: tuple[Column, ...] = ()
    row_shape: tuple[Annotated[int, Field(gt=0, lt=2**32)], ...] = ()
    element_type: str = ""

    @model_validator(mode="after")
    def _parts_fit_kind(self) -> Self:
        if self.kind is SetKind.ARRAY:
            if self.columns or self.element_type not in ELEMENT_TYPES:
                raise ValueError("an array has a known element type and no columns")
            return self
        if self.row_shape or self.element_type:
            raise ValueError("only an array has a row shape and an element type")
        if len(set(self.names)) != len(self.names):
            raise ValueError("column names are unique")
        texts = sum(column.type is ColumnType.TEXT for column in self.columns)
        if self.kind is SetKind.TEXT and (texts, len(self.columns)) != (1, 1):
            raise ValueError("a text set has one column, of text")
        if self.kind is SetKind.TABLE and (texts or not self.columns):
            raise ValueError("a table has at least one column and none of free text")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(column.name for column in self.columns)

    def to_json(self) -> str:
        """Canonical JSON: the same schema is always the same string."""
        content = self.model_dump(mode="json")
        return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, content: str) -> SetSchema:
        """The schema `to_json` wrote."""
        return cls.model_validate_json(content)

    def to_proto(self) -> registry_pb2.SetSchema:
        """The message that carries this schema."""
        return registry_pb2.SetSchema(
            kind=_KINDS[self.kind],
            columns=[
                registry_pb2.Column(
                    name=column.name,
                    type=_TYPES[column.type],
                    categories=column.categories,
                    nullable=column.nullable,
                )
                for column in self.columns
            ],
            row_shape=self.row_shape,
            element_type=self.element_type,
        )

    @classmethod
    def from_proto(cls, message: registry_pb2.SetSchema) -> SetSchema:
        """The schema a peer sent; MESSAGE_MALFORMED if it contradicts itself."""
        try:
            return cls(
                kind=_KIND_OF[message.kind],
                columns=tuple(
                    Column(
                        name=column.name,
                        type=_TYPE_OF[column.type],
                        categories=tuple(column.categories),
                        nullable=column.nullable,
                    )
                    for column in message.columns
                ),
                row_shape=tuple(message.row_shape),
                element_type=message.element_type,
            )
        except (KeyError, ValidationError) as error:
            why = "the schema of a public set contradicts itself"
            raise Refusal(MESSAGE_MALFORMED, why=why) from error
