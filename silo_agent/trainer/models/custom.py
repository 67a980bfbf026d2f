"""A person's own learner, named by import path: `package.module:Class`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

from silo_agent.trainer.models.parameters import closest, refuse_parameter
from silo_agent.trainer.models.protocol import IterativeLearner, Learner, Problem, Reads, reads_of
from silo_agent.trainer.models.seen_labels import SeenLabels
from wire.errors import ConfigurationError


def custom(path: str, given: Mapping[str, object], problem: Problem) -> Learner | IterativeLearner:
    """The class at `path`, built with the person's parameters.

    Where its constructor names them, it also receives `classes`, `row_shape` and the seed (as
    `seed` or `random_state`). A class with `fit` sees only contiguous labels and rows in their own
    shape; one with `advance` is left as it is.
    """
    kind = _class_at(path)
    arguments = _arguments(path, kind, given, problem)
    if callable(getattr(kind, "advance", None)):
        learner: IterativeLearner = kind(**arguments)
        return learner
    return SeenLabels(
        partial(kind, **arguments), problem.classes, flatten=False, reads=reads_of(kind)
    )


def custom_reads(path: str) -> Reads:
    """What the class at `path` says it reads."""
    kind = _class_at(path)
    said = getattr(kind, "reads", "features")
    if said not in ("features", "texts"):
        raise ConfigurationError(
            f"Learner {path}: `reads` is {said!r}.", 'It must be "features" or "texts".'
        )
    return reads_of(kind)


def _class_at(path: str) -> Any:
    module_name, _, class_name = path.partition(":")
    module = _module(path, module_name)
    kind = getattr(module, class_name, None)
    if not inspect.isclass(kind):
        classes = [name for name, value in vars(module).items() if inspect.isclass(value)]
        raise ConfigurationError(
            f"Learner {path}: module {module_name} has no class {class_name or '(empty)'}.",
            closest(class_name, classes) + "Write it as package.module:Class.",
        )
    missing = [word for word in ("fit", "predict") if not callable(getattr(kind, word, None))]
    if missing == ["fit"] and callable(getattr(kind, "advance", None)):
        missing = []
    if missing:
        raise ConfigurationError(
            f"Learner {path}: the class has no method {' and no method '.join(missing)}.",
            "A learner has fit(X, y) and predict(X), or advance(private, pseudo, steps, seed) and "
            "predict(X).",
        )
    return kind


def _module(path: str, name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        absent = error.name or name
        if name == absent or name.startswith(f"{absent}."):
            raise ConfigurationError(
                f"Learner {path}: there is no module {absent}.",
                "Install its package beside Consilium, or put its folder on PYTHONPATH.",
            ) from error
        raise ConfigurationError(
            f"Learner {path}: module {name} needs {absent}, which is not installed.",
            f"Install {absent} in the trainer's environment.",
        ) from error
    except Exception as error:
        # Whatever a person's module raises while it is imported is theirs to read.
        raise ConfigurationError(
            f"Learner {path}: importing {name or 'the module'} failed with "
            f"{type(error).__name__}: {error}.",
            f'Try `python -c "import {name}"` in the trainer\'s environment.',
        ) from error


def _arguments(
    path: str, kind: Any, given: Mapping[str, object], problem: Problem
) -> dict[str, Any]:
    """Keyword arguments of the constructor; ConfigurationError for an unknown or a missing one."""
    known = dict(inspect.signature(kind).parameters)
    variadic = {
        known.pop(name).kind
        for name, parameter in list(known.items())
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    offered = {
        "classes": problem.classes,
        "row_shape": problem.row_shape,
        "seed": problem.seed,
        "random_state": problem.seed,
    }
    refused = given.keys() & offered.keys()
    if inspect.Parameter.VAR_KEYWORD not in variadic:
        refused |= given.keys() - known.keys()
    for name in sorted(refused):
        refuse_parameter(path, name, known.keys() - offered.keys())
    arguments = {name: value for name, value in offered.items() if name in known} | dict(given)
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in arguments:
            raise ConfigurationError(
                f"Learner {path} needs a parameter {name}.", "Add it under `parameters`."
            )
    return arguments
