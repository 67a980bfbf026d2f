"""`consilium coordinator backup` and `restore`: copy a consortium while it is served, and put it back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coordinator.cli.connection import Home
from coordinator.settings import CoordinatorHome
from coordinator.setup.backup import back_up, stream
from coordinator.setup.backup import restore as restore_home
from wire.runtime.archive import STREAM, backup_from, backup_to
from wire.runtime.passphrase import Encrypt, PassphraseFile, known_passphrase, new_passphrase
from wire.runtime.terminal import errors, say, size


def backup(
    out: Annotated[
        Path,
        typer.Option(
            help="Folder to make, with --encrypt file; - for one file on standard output. It will hold the authority's key."
        ),
    ],
    home: Home,
    encrypt: Encrypt = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Copy everything but admins' keys while the coordinator serves; serve the folder, or `restore` the file, to go back to it."""
    live = CoordinatorHome(home)
    if encrypt or out == STREAM:
        passphrase = new_passphrase(passphrase_file) if encrypt else None
        with backup_to(out, passphrase) as file:
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
    passphrase_file: PassphraseFile = None,
) -> None:
    """Put a consortium back into an empty folder; then serve it."""
    with backup_from(file, known_passphrase(passphrase_file)) as source:
        restore_home(CoordinatorHome(home), source)
    say(
        "The consortium is in {}. It must be reached by the same name and ports as before. An admin whose "
        "key is lost gets another by `consilium coordinator admit-admin`.",
        home,
        to=errors,
    )
