"""Copies a SQLite database while others write to it. PostgreSQL has tools of its own."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import make_url

from coordinator.store.engine import SQLITE
from wire.errors import ConfigurationError


def sqlite_file(url: str) -> Path | None:
    """The file of a SQLite database; None if the database is another."""
    parsed = make_url(url)
    is_file = parsed.get_backend_name() == SQLITE and parsed.database
    return Path(str(parsed.database)) if is_file else None


def copy_database(live: Path, copy: Path) -> frozenset[str]:
    """Copies the database as it stands at one moment; the digests of the public files it names.

    Read back and examined as it is, not opened as a store: that would upgrade a copy made before an upgrade.
    """
    try:
        source = sqlite3.connect(f"{live.resolve().as_uri()}?mode=ro", uri=True)
        with closing(source), closing(sqlite3.connect(copy)) as copied:
            # In one step: whoever writes meanwhile is not waited for and not copied.
            source.backup(copied)
    except sqlite3.Error as error:
        raise ConfigurationError(
            f"The database {live} cannot be copied: {error}.",
            "Check that it is there, that it can be read, and that the disk has room.",
        ) from error
    return named_in(copy)


def named_in(copy: Path) -> frozenset[str]:
    """The digests of the public files that a copied database names; ConfigurationError if it is damaged."""
    try:
        with closing(sqlite3.connect(copy)) as copied:
            (found,) = copied.execute("PRAGMA quick_check(1)").fetchone()
            named = copied.execute(
                "SELECT digest FROM public_sets UNION SELECT digest FROM extractors"
            )
            digests = frozenset(digest for (digest,) in named)
    except sqlite3.Error as error:
        found = str(error)
    if found != "ok":
        raise ConfigurationError(
            f"The database is damaged: {found}.", "Restore an earlier backup; keep this file."
        )
    return digests
