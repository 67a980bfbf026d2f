"""Reads YAML files into pydantic models; every error names the file, the key and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from wire.errors import ConfigurationError

M = TypeVar("M", bound=BaseModel)


def read_yaml(path: Path, model: type[M]) -> M:
    """The file at `path` as a `model`, or ConfigurationError."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(f"{path} does not exist.", "Check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}.") from None
    except RecursionError:
        raise ConfigurationError(f"{path} is nested too deeply.") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        problem = getattr(error, "problem", None) or "not YAML"
        raise ConfigurationError(
            f"{path}{line}: {problem}.", "Check the indentation and the quotes there."
        ) from None
    if not isinstance(values, dict):
        raise ConfigurationError(f"{path} is empty or not a list of `key: value` lines.")
    return checked(values, model, str(path))


def checked(values: dict[str, Any], model: type[M], source: str) -> M:
    """`values` as a `model`; every problem is named at once, one line each."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = [_explain(problem, model) for problem in error.errors()]
        sentence = f"{source}: " + "; ".join(lines) + "."
        raise ConfigurationError(sentence, "Correct the keys named above.") from None


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """A pydantic error in plain words; quotes no value, because both sides log it."""
    return "; ".join(_explain(problem, model, quote=False) for problem in error.errors())


def _explain(problem: Any, model: type[BaseModel], *, quote: bool = True) -> str:
    key = ".".join(str(part) for part in problem["loc"]) or "the whole file"
    if problem["type"] == "missing":
        return f"`{key}` is missing"
    if problem["type"] == "extra_forbidden":
        *parents, last = problem["loc"]
        close = difflib.get_close_matches(str(last), _keys(model, parents), n=1)
        return f"`{key}` is not a known key" + (f"; did you mean `{close[0]}`?" if close else "")
    message = problem["msg"].removeprefix("Value error, ")
    given = problem["input"]
    plain = isinstance(given, str | int | float | bool)
    shown = f" (it is {given!r})" if quote and plain else ""
    return f"`{key}`: {message[:1].lower()}{message[1:]}{shown}"


def _keys(model: type[BaseModel], parents: Iterable[Any]) -> list[str]:
    """The keys allowed at `parents` below `model`."""
    for parent in parents:
        field = model.model_fields.get(str(parent))
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)
