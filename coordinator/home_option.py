"""The option by which every command of the consortium's side is told where its folder is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def default_home() -> Path:
    """$CONSILIUM_HOME, else ~/.consilium/coordinator."""
    return Path(os.environ.get("CONSILIUM_HOME") or Path.home() / ".consilium" / "coordinator")


Home = Annotated[
    Path,
    typer.Option(
        "--home",
        envvar="CONSILIUM_HOME",
        default_factory=default_home,
        show_default="~/.consilium/coordinator",
        help="Folder that `consilium coordinator init` made.",
    ),
]
