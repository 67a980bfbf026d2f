"""How much the fields of a message may hold, as `max_length` and `max_items` in the protos say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from wire.consilium.v1 import bounds_pb2
from wire.errors import FIELD_TOO_LONG, Refusal


@dataclass(frozen=True)
class Bounds:
    """What a field may hold; None where its proto says nothing."""

    max_length: int | None
    """Characters of a string, bytes of a bytes field; of every item of a repeated field, every key of a map."""
    max_items: int | None
    """Items of a repeated field, entries of a map."""


@dataclass(frozen=True)
class Violation:
    """A field that holds too much. Nothing in it was written by the sender."""

    field: str
    """Message and field: `WatchRequest.instance`."""
    actual: int
    most: int
    unit: str
    """Of `actual` and `most`: items, characters or bytes."""


# The health service is open to anyone, and its proto is not ours.
_FOREIGN = {"grpc.health.v1.HealthCheckRequest.service": Bounds(max_length=128, max_items=None)}


@cache
def bounds_of(field: FieldDescriptor) -> Bounds:
    """The bounds that the proto states for a field."""
    if field.full_name in _FOREIGN:
        return _FOREIGN[field.full_name]
    stated = field.GetOptions().Extensions
    return Bounds(stated[bounds_pb2.max_length] or None, stated[bounds_pb2.max_items] or None)


def first_violation(message: Message) -> Violation | None:
    """The first field, at any depth, that holds more than its bound allows."""
    for field, value in message.ListFields():
        found = _too_many(field, value) or _too_long(field, value)
        if found is not None:
            return found
    return None


def require_bounded(message: Message) -> None:
    """FIELD_TOO_LONG if a field of the message, at any depth, holds more than its bound allows."""
    found = first_violation(message)
    if found is not None:
        raise Refusal(
            FIELD_TOO_LONG, field=found.field, actual=found.actual, most=found.most, unit=found.unit
        )


def _too_many(field: FieldDescriptor, value: Any) -> Violation | None:
    most = bounds_of(field).max_items
    if most is None or len(value) <= most:
        return None
    return Violation(_named(field), len(value), most, "items")


def _too_long(field: FieldDescriptor, value: Any) -> Violation | None:
    most = bounds_of(field).max_length
    for item in _items(field, value):
        if isinstance(item, Message):
            found = first_violation(item)
            if found is not None:
                return found
        elif most is not None and isinstance(item, str | bytes) and len(item) > most:
            unit = "characters" if isinstance(item, str) else "bytes"
            return Violation(_named(field), len(item), most, unit)
    return None


def _items(field: FieldDescriptor, value: Any) -> Iterable[Any]:
    """What a field holds, one by one; of a map its keys and its values."""
    if not field.is_repeated:
        return (value,)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return (part for entry in value.items() for part in entry)
    items: Iterable[Any] = value
    return items


def _named(field: FieldDescriptor) -> str:
    return ".".join(field.full_name.split(".")[-2:])
