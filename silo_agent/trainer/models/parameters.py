"""A person's learner parameters, checked by name before anything is trained."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from wire.errors import ConfigurationError

SettingsT = TypeVar("SettingsT", bound=BaseModel)


def estimator_parameters(
    learner: str,
    estimator: Any,
    defaults: Mapping[str, object],
    given: Mapping[str, object],
    seed: int,
) -> dict[str, Any]:
    """Constructor arguments for a scikit-learn-like class: our defaults, the person's, the seed."""
    known = set(estimator().get_params()) - {"random_state"}
    for parameter in given:
        if parameter not in known:
            refuse_parameter(learner, parameter, known)
    return {**defaults, **given, "random_state": seed}


def settings(learner: str, model: type[SettingsT], given: Mapping[str, object]) -> SettingsT:
    """`given` as one of our own settings models."""
    for parameter in given:
        if parameter not in model.model_fields:
            refuse_parameter(learner, parameter, model.model_fields)
    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        parameter = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(
            f"Parameter {parameter} of learner {learner} is not valid: {first['msg']}.",
            f"It was given as {first['input']!r}.",
        ) from error


def refuse_parameter(learner: str, parameter: str, known: Collection[str]) -> NoReturn:
    """Says which parameter is unknown and which ones there are."""
    if parameter in ("random_state", "seed"):
        raise ConfigurationError(
            f"Learner {learner} takes no parameter {parameter}: its randomness follows from the "
            "task's seed.",
            "Remove it from `parameters`.",
        )
    raise ConfigurationError(
        f"Learner {learner} has no parameter {parameter}.",
        closest(parameter, known) + f"It takes: {', '.join(sorted(known))}.",
    )


def closest(word: str, known: Collection[str]) -> str:
    """`Did you mean …? ` with a trailing space, or nothing."""
    match = get_close_matches(word, known, n=1)
    return f"Did you mean {match[0]}? " if match else ""
