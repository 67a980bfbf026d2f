"""`consilium coordinator backup` and `restore`: copy a consortium while it is served, and put it back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coordinator.cli.connection import Home
from coordinator.settings import CoordinatorHome
from coordinator.setup.backup import back_up, stream
from coordinator.setup.backup import restore as restore_home
from wire.runtime.archive import STREAM, open_backup
from wire.runtime.terminal import errors, say, size


def backup(
    out: Annotated[
        Path,
        typer.Option(
            help="Folder to make, - for one file on standard output; it will hold the authority's key."
        ),
    ],
    home: Home,
) -> None:
    """Copy everything while the coordinator serves; serve the folder, or `restore` the file, to go back to it."""
    live = CoordinatorHome(home)
    if out == STREAM:
        with open_backup(out, "w") as file:
            made = stream(live, file)
    else:
        made = back_up(live, out)
    say(
        "{}, {} public files. It holds the authority's key: keep it secret.",
        size(made.bytes),
        made.public_files,
        to=errors,
    )
    if not made.with_database:
        say("The database is PostgreSQL: back it up with pg_dump, before this folder.", to=errors)


def restore(
    file: Annotated[
        Path, typer.Argument(help="What `backup --out -` wrote; - for standard input.")
    ],
    home: Home,
) -> None:
    """Put a consortium back into an empty folder; then serve it."""
    with open_backup(file, "r") as source:
        restore_home(CoordinatorHome(home), source)
    say(
        "The consortium is in {}. It must be reached by the same name and ports as before.",
        home,
        to=errors,
    )
