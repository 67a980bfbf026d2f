"""The methods a task may follow: their names and numbers, and the rules of those with settings of their own.

A method without settings is one member of `Method`. One with settings also has a module here with its
`MethodRules`, an entry in RULES, and its fields in TaskDefinition and in protos/consilium/v1/task.proto.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wire.consilium.v1 import task_pb2
from wire.enums import WireEnum
from wire.task.methods.cofed import Cofed
from wire.task.methods.fedaux import Fedaux, FedauxPolicy
from wire.task.methods.fedct import Fedct
from wire.task.methods.fedkt import Fedkt, FedktLevel, FedktPolicy
from wire.task.methods.rules import MethodRules

if TYPE_CHECKING:
    from wire.task.definition import TaskDefinition

__all__ = [
    "RULES",
    "FedauxPolicy",
    "FedktLevel",
    "FedktPolicy",
    "Method",
    "MethodRules",
    "completed",
    "fields_from_proto",
    "fields_to_proto",
    "require_method",
    "rules_of",
]


class Method(WireEnum):
    """Which of the papers' methods the silos follow, with its number in the proto's `Method`."""

    FEDCT = "fedct", 1
    FEDKT = "fedkt", 2
    COFED = "cofed", 3
    FEDAUX = "fedaux", 4


RULES: tuple[MethodRules, ...] = (Fedct(), Fedkt(), Cofed(), Fedaux())
"""The methods that have settings of their own."""


def rules_of(method: str) -> MethodRules:
    """The rules of a method; those of `MethodRules` itself for one without settings."""
    return next((rules for rules in RULES if rules.name == method), MethodRules())


def completed(values: Mapping[str, Any]) -> dict[str, Any]:
    """task.yaml's `values` and, where they say nothing, what their method means."""
    whole = dict(values)
    rules = rules_of(whole.get("method", ""))
    for name, meant in rules.defaults.items():
        given = whole.get(name)
        # An empty `fedkt:` is the section with nothing in it; pydantic refuses an empty `rounds:`.
        if name not in whole or (given is None and name in rules.fields):
            whole[name] = meant
        elif isinstance(meant, Mapping) and isinstance(given, Mapping):
            whole[name] = {**meant, **given}
    return whole


def require_method(task: TaskDefinition) -> None:
    """Raises ValueError if a field of another method is given, or if the task's own method cannot run it."""
    for rules in RULES:
        if rules.name == task.method:
            continue
        for name, begins in rules.fields.items():
            default = type(task).model_fields[name].get_default(call_default_factory=True)
            if getattr(task, name) != default:
                raise ValueError(f"{begins} to method {rules.name}, not {task.method}")
    rules_of(task.method).require(task)


def fields_to_proto(task: TaskDefinition) -> dict[str, Any]:
    """Every method's own fields as arguments of the wire's TaskDefinition."""
    return {name: value for rules in RULES for name, value in rules.to_proto(task).items()}


def fields_from_proto(message: task_pb2.TaskDefinition) -> dict[str, Any]:
    """Every method's own fields as the wire carries them, not yet validated."""
    return {name: value for rules in RULES for name, value in rules.from_proto(message).items()}
