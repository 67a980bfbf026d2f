"""Every option's default is a value the option takes: a command must work when it is left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from wire.runtime.cli import application

pytestmark = pytest.mark.slow


def options(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """Every option below a command, with the words to get there."""
    for parameter in command.params:
        if parameter.param_type_name == "option":
            yield " ".join((*path, parameter.opts[0])), parameter
    for name, below in getattr(command, "commands", {}).items():
        yield from options(below, *path, name)


NUMBERS = {
    name: option
    for name, option in options(typer.main.get_command(application([])))
    if type(option.default) in (int, float) and (option.min, option.max) != (None, None)
}


def test_there_are_such_options() -> None:
    assert len(NUMBERS) > 3


@pytest.mark.parametrize("name", sorted(NUMBERS))
def test_a_number_left_out_is_in_its_range(name: str) -> None:
    option = NUMBERS[name]
    assert option.min is None or option.min <= option.default
    assert option.max is None or option.default <= option.max
