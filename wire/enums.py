"""Closed sets of names that also travel as protobuf enums: every member carries its number on the wire."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, Self


class WireEnum(StrEnum):
    """Declare members as `NAME = "value", number`; one without a number fails when its module is imported."""

    _value_: str
    wire_number: int

    def __new__(cls, value: str, wire_number: int = 0) -> Self:
        """Makes a member. The default is for type checkers, which take a look-up by value for this call."""
        if wire_number < 1:
            raise TypeError(f"{value} has no number; 0 is what protobuf calls unspecified")
        member = str.__new__(cls, value)
        member._value_ = value
        member.wire_number = wire_number
        return member

    def to_proto(self) -> Any:
        """`wire_number`, typed loosely: every protobuf enum has an integer type of its own."""
        return self.wire_number

    @classmethod
    def by_number(cls, number: int) -> Self | None:
        """The member with this number on the wire, if there is one."""
        return next((member for member in cls if member.wire_number == number), None)

    @classmethod
    def value_of(cls, number: int) -> str:
        """The value of the member with this number; `unknown (7)` for pydantic to refuse if there is none."""
        member = cls.by_number(number)
        return f"unknown ({number})" if member is None else member.value


def enum_name(kind: Any, number: int) -> str:
    """`running` for the protobuf enum `TaskStatus` and its number of `TASK_STATUS_RUNNING`.

    `unknown (9999)` for a number that a newer or a lying peer sent.
    """
    value = kind.DESCRIPTOR.values_by_number.get(number)
    if value is None:
        return f"unknown ({number})"
    prefix = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.DESCRIPTOR.name).upper()
    return str(value.name.removeprefix(f"{prefix}_").lower())
