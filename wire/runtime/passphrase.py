"""Where the passphrase of a backup comes from: a file, the environment, or the person at the terminal."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer

from wire.errors import ConfigurationError
from wire.runtime.secret_option import secret_text

VARIABLE: Final = "CONSILIUM_BACKUP_PASSPHRASE"
LEAST_CHARACTERS: Final = 12

Encrypt = Annotated[
    bool,
    typer.Option("--encrypt", help="Encrypt it with a passphrase; `restore` asks for the same."),
]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(
        envvar=f"{VARIABLE}_FILE",
        help=f"File with the passphrase; else it is ${VARIABLE}, else you are asked.",
    ),
]


def new_passphrase(file: Path | None) -> str:
    """The passphrase to encrypt with; ConfigurationError if it is short enough to be guessed."""
    found = _passphrase(file, confirm=True)
    if len(found) < LEAST_CHARACTERS:
        raise ConfigurationError(
            f"The passphrase has {len(found)} characters; at least {LEAST_CHARACTERS} are needed.",
            "Make one, for example with `openssl rand -base64 24`, and keep it apart from the backup.",
        )
    return found


def known_passphrase(file: Path | None) -> Callable[[], str]:
    """Asks for the passphrase to open a backup with, when it is needed."""
    return lambda: _passphrase(file, confirm=False)


def _passphrase(file: Path | None, *, confirm: bool) -> str:
    if file is not None:
        return secret_text(f"@{file}")
    if given := os.environ.get(VARIABLE):
        return given
    try:
        return str(
            typer.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True)
        )
    except typer.Abort:
        raise ConfigurationError(
            "The backup needs a passphrase, and nobody is here to give one.",
            f"Name a file with --passphrase-file, or set {VARIABLE}.",
        ) from None
