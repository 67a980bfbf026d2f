"""Names of silos and tasks: fit for certificates, file names and metric labels."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")


def valid_name(name: str) -> str:
    """The name itself, or a ValueError that says what a name looks like."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a valid name: 1 to 63 lower-case letters, digits and hyphens, "
            "starting with a letter"
        )
    return name


Name = Annotated[str, AfterValidator(valid_name)]
