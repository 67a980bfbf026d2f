"""What one row of a public set looks like: the form every hospital's private data must have."""

from __future__ import annotations

import json
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from wire.consilium.v1 import registry_pb2
from wire.enums import WireEnum
from wire.errors import MESSAGE_MALFORMED, Refusal

ELEMENT_TYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64"),
)


class SetKind(WireEnum):
    """What kind of thing one row is."""

    TABLE = "table", registry_pb2.SET_KIND_TABLE
    TEXT = "text", registry_pb2.SET_KIND_TEXT
    ARRAY = "array", registry_pb2.SET_KIND_ARRAY


class ColumnType(WireEnum):
    """What values a column holds."""

    NUMBER = "number", registry_pb2.COLUMN_TYPE_NUMBER
    CATEGORY = "category", registry_pb2.COLUMN_TYPE_CATEGORY
    TEXT = "text", registry_pb2.COLUMN_TYPE_TEXT


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
        types = [column.type for column in self.columns]
        match self.kind:
            case SetKind.ARRAY:
                if self.columns or self.element_type not in ELEMENT_TYPES:
                    raise ValueError("an array has a known element type and no columns")
            case SetKind.TEXT:
                self._require_columns()
                if types != [ColumnType.TEXT]:
                    raise ValueError("a text set has one column, of text")
            case SetKind.TABLE:
                self._require_columns()
                if not types or ColumnType.TEXT in types:
                    raise ValueError("a table has at least one column and none of free text")
        return self

    def _require_columns(self) -> None:
        if self.row_shape or self.element_type:
            raise ValueError("only an array has a row shape and an element type")
        if len(set(self.names)) != len(self.names):
            raise ValueError("column names are unique")

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
            kind=self.kind.to_proto(),
            columns=[
                registry_pb2.Column(
                    name=column.name,
                    type=column.type.to_proto(),
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
            return cls.model_validate(
                {
                    "kind": SetKind.value_of(message.kind),
                    "columns": tuple(map(_column, message.columns)),
                    "row_shape": tuple(message.row_shape),
                    "element_type": message.element_type,
                }
            )
        except ValidationError as error:
            why = "the schema of a public set contradicts itself"
            raise Refusal(MESSAGE_MALFORMED, why=why) from error


def _column(message: registry_pb2.Column) -> dict[str, object]:
    return {
        "name": message.name,
        "type": ColumnType.value_of(message.type),
        "categories": tuple(message.categories),
        "nullable": message.nullable,
    }
