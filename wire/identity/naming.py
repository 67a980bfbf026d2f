"""Valid names of consortia, members and tasks: safe in certificates, file names and metric labels."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")


def valid_name(name: str) -> bool:
    """1 to 63 lower-case letters, digits and hyphens, starting with a letter."""
    return _NAME.fullmatch(name) is not None


def _named(name: str) -> str:
    if not valid_name(name):
        raise ValueError(
            f"{name!r} is not a valid name: 1 to 63 lower-case letters, digits and hyphens, "
            "starting with a letter"
        )
    return name


Name = Annotated[str, AfterValidator(_named)]
