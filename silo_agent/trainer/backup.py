"""Copies of what a hospital must not lose, made while its trainer works: its private memory, and the ledger's witness.

They are two files for two media: whoever put back an old copy of both would spend a budget twice and not notice.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO

from silo_agent.shared.home import SiloHome
from wire.errors import ConfigurationError
from wire.runtime.archive import pack, temporary_folder, unpack


class Part(StrEnum):
    """What is copied into one file."""

    TRAINER = "trainer"
    """Ledger, record of patients, approvals, ballots, models."""
    WITNESS = "witness"
    """Where the ledger is known to have ended."""


def back_up_part(home: SiloHome, part: Part, out: IO[bytes]) -> None:
    """Writes a part of the private side. The ledger is copied after the ballots, so that it knows them all.

    ConfigurationError if something cannot be read, or was replaced at that very moment.
    """
    folder = _folder(home, part)
    if not folder.is_dir():
        raise ConfigurationError(f"There is nothing in {folder} yet.")
    with _as_configuration_error(f"{folder} cannot be copied"), temporary_folder(folder) as place:
        # What begins with a dot is half of a file; public files can be had again.
        left_out = shutil.ignore_patterns(
            ".*",
            home.trainer_lock.name,
            home.public_copies.name,
            f"{home.ledger.name}*",
            f"{home.patients.name}*",
        )
        shutil.copytree(folder, place, ignore=left_out, dirs_exist_ok=True)
        if part is Part.TRAINER:
            # Patients are kept before they are charged, so their record comes after the ledger.
            for database in (home.ledger, home.patients):
                if database.exists():
                    _copy_database(database, place / database.name)
        pack(place, out, part)


def restore_part(home: SiloHome, part: Part, source: IO[bytes]) -> None:
    """Restores a part that does not exist yet; ConfigurationError if it does. Does not detect an outdated copy."""
    folder = _folder(home, part)
    kept = home.ledger if part is Part.TRAINER else home.ledger_witness
    if kept.exists():
        raise ConfigurationError(
            f"{kept} is there already, and nothing is put over it.",
            f"Move {folder} away first if it is the wrong one.",
        )
    with _as_configuration_error(f"{folder} cannot be filled"):
        folder.mkdir(parents=True, exist_ok=True)
        _fill(folder, part, source, last=kept.name)


def _fill(folder: Path, part: Part, source: IO[bytes], last: str) -> None:
    """Moves what the stream holds to the folder when it is whole; `last` comes last, and tells that it was."""
    with temporary_folder(folder) as place:
        unpack(source, place, part)
        for path in sorted(place.iterdir(), key=lambda path: path.name == last):
            if (folder / path.name).exists():
                raise ConfigurationError(f"{folder / path.name} is there already: empty {folder}.")
            path.rename(folder / path.name)


def _folder(home: SiloHome, part: Part) -> Path:
    return home.trainer if part is Part.TRAINER else home.ledger_witness.parent


@contextmanager
def _as_configuration_error(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        why = getattr(error, "strerror", None) or "a file is damaged, or was replaced meanwhile"
        raise ConfigurationError(f"{what}: {why}.", "Try again.") from error


def _copy_database(live: Path, copy: Path) -> None:
    source = sqlite3.connect(f"{live.resolve().as_uri()}?mode=ro", uri=True)
    with closing(source), closing(sqlite3.connect(copy)) as copied:
        source.backup(copied)
