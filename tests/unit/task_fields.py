"""The fields of a task definition at every depth, values for each of them, and where each must be found."""

from __future__ import annotations

import copy
import itertools
import types
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any, Union, get_args, get_origin

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from wire.task.definition import TaskDefinition

Path = tuple[str, ...]
Values = dict[str, Any]

RENAMED = {
    "ConsensusPolicy.min_share": "min_share_permille",
    "ConsensusPolicy.threshold": "threshold_permille",
    "ConsensusPolicy.trim": "trim_permille",
    "FedauxPolicy.negatives": "negatives_permille",
    "FedauxPolicy.regularisation": "regularisation_permille",
    "PrivacyDemand.max_delta": "max_delta_picos",
    "PrivacyDemand.max_epsilon": "max_epsilon_micros",
    "PrivacyDemand.party_gamma": "party_gamma_micros",
    "RoundPolicy.stop_churn": "stop_churn_permille",
}
"""Fields that the wire calls otherwise, because it has integers only."""

WRAPPERS = {"google.protobuf.Duration": {"seconds", "nanos"}, "consilium.v1.LabelSpace": {"labels"}}
"""Messages that stand for a plain value, with all their fields."""


def nested_models(model: type[BaseModel]) -> list[type[BaseModel]]:
    """The model and every model inside it."""
    inside = [one for field in model.model_fields.values() for one in _models_in(field.annotation)]
    return [model, *(found for one in inside for found in nested_models(one))]


def model_fields_of(model: type[BaseModel]) -> Iterator[tuple[type[BaseModel], str, FieldInfo]]:
    """Every field at every depth, with the model that has it."""
    for one in nested_models(model):
        for name, field in one.model_fields.items():
            yield one, name, field


def paths(model: type[BaseModel], above: Path = ()) -> Iterator[Path]:
    """The way to every field that contains no model."""
    for name, field in model.model_fields.items():
        inside = _models_in(field.annotation)
        if not inside:
            yield (*above, name)
        for one in inside:
            yield from paths(one, (*above, name))


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for one in get_args(annotation) for found in _models_in(one)]


def unmatched(model: type[BaseModel], message: Descriptor) -> list[str]:
    """Fields, at every depth, that only one of the two has."""
    told = []
    free = {field.name: field for field in message.fields}
    for name, field in model.model_fields.items():
        full = f"{model.__name__}.{name}"
        sent = free.pop(RENAMED.get(full, name), None)
        if sent is None:
            told.append(f"{full} is in no message")
            continue
        inside = _models_in(field.annotation)
        if inside and sent.message_type is not None:
            told += [line for one in inside for line in unmatched(one, sent.message_type)]
        else:
            told += _strange_wrapper(sent)
    return told + [f"{message.name}.{name} is in no model" for name in free]


def _strange_wrapper(sent: FieldDescriptor) -> list[str]:
    """What a message that stands for a plain value has besides it."""
    wrapper = sent.message_type
    if wrapper is None:
        return []
    if wrapper.GetOptions().map_entry:
        return _strange_wrapper(wrapper.fields_by_name["value"])
    known = WRAPPERS.get(wrapper.full_name, set())
    return [
        f"{wrapper.name}.{f.name} is in no model" for f in wrapper.fields if f.name not in known
    ]


def field_at(model: type[BaseModel], path: Path) -> tuple[str, FieldInfo]:
    """The field at the end of a path, and its name with its model's."""
    for name in path[:-1]:
        (model,) = _models_in(model.model_fields[name].annotation)
    return f"{model.__name__}.{path[-1]}", model.model_fields[path[-1]]


def value_at(task: BaseModel, path: Path) -> Any:
    """What a definition says there; None inside a section it does not have."""
    value: Any = task
    for name in path:
        value = None if value is None else getattr(value, name)
    return value


def changes(
    model: type[TaskDefinition], bases: Sequence[Values], path: Path
) -> Iterator[tuple[TaskDefinition, TaskDefinition]]:
    """Valid definitions, each with the same definition in which the field at `path` says something else."""
    _, field = field_at(model, path)
    for base in bases:
        before = model.model_validate(base)
        for candidate in candidates(field.annotation):
            values = copy.deepcopy(base)
            section = values
            for name in path[:-1]:
                section = section.setdefault(name, {})
            section[path[-1]] = candidate
            try:
                after = model.model_validate(values)
            except ValidationError:
                continue
            if value_at(after, path) != value_at(before, path):
                yield before, after


def candidates(annotation: Any) -> list[Any]:
    """Values of a type, several and unlike each other; an AssertionError for a type nobody has thought of."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return list(annotation)
    if origin in (Union, types.UnionType):
        return [one for kind in inner if kind is not type(None) for one in candidates(kind)]
    if origin is tuple:
        return _tuples(candidates(inner[0]))
    if origin is dict:
        key, value = (candidates(kind) for kind in inner)
        return [{key[0]: one} for one in value]
    if hasattr(annotation, "__metadata__"):
        return candidates(inner[0])
    assert annotation in _PLAIN, f"say in `candidates` which values {annotation} has"
    return list(_PLAIN[annotation])


def _tuples(values: list[Any]) -> list[Any]:
    alone: list[Any] = [[one] for one in values]
    return alone + [[one, other] for one in values for other in values if one != other]


# Names, labels of the pinned definitions, a digest; shares, counts, durations.
_PLAIN: dict[Any, Sequence[Any]] = {
    bool: (False, True),
    int: (3, 2, 1, 7),
    float: (0.25, 0.125, 3.5, 77.0),
    str: ("b", "a", "west", "0a" * 32),
}


def lost_on_the_wire(model: type[TaskDefinition], bases: Sequence[Values], path: Path) -> str:
    """What is wrong with how a field travels; empty if a value of its own comes back."""
    full, field = field_at(model, path)
    silence = (None, field.get_default(call_default_factory=True))
    pairs = itertools.chain.from_iterable(changes(model, bases, path))
    task = next((one for one in pairs if value_at(one, path) not in silence), None)
    if task is None:
        return f"no pinned definition lets {full} have a value that is not its default"
    back = model.from_proto(task.to_proto())
    if value_at(back, path) != value_at(task, path) or back.digest != task.digest:
        return f"{full} does not survive the wire"
    return ""


def untold(
    model: type[TaskDefinition],
    bases: Sequence[Values],
    text: Callable[[TaskDefinition], str],
    path: Path,
) -> bool:
    """Whether no change of the field changes what a person reads."""
    return all(text(before) == text(after) for before, after in changes(model, bases, path))
