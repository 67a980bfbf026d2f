"""The `--home` option of every command of a hospital."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from silo_agent.shared.home import default_home

Home = Annotated[
    Path,
    typer.Option(
        "--home",
        envvar="CONSILIUM_SILO_HOME",
        default_factory=default_home,
        show_default="~/.consilium/silo",
        help="The silo's folder.",
    ),
]
