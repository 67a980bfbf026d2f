"""`consilium coordinator backup`: copy a consortium while it is served."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coordinator.backup import back_up
from coordinator.cli.connection import Home
from coordinator.settings import CoordinatorHome
from wire.terminal import console, size


def backup(
    out: Annotated[Path, typer.Option(help="Folder to make; it will hold the authority's key.")],
    home: Home,
) -> None:
    """Copy everything to a new folder while the coordinator serves; serve that folder to restore it."""
    made = back_up(CoordinatorHome(home), out)
    console.print(
        f"{size(made.bytes)} in {out}, {made.public_files} public files. It holds the authority's key: "
        "keep it secret."
    )
    if not made.with_database:
        console.print("The database is PostgreSQL: back it up with pg_dump, before this folder.")
