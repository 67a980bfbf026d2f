"""The ledger on the disk: a SQLite file with one table to which entries can only be added.

A connection lives for one operation, so that a file that was exchanged underneath is noticed, and nothing is
ever written to one that has been removed.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from silo_agent.trainer.privacy.ledger.witness import inherit_owner
from wire.errors import DISK_FULL, LEDGER_BROKEN, LEDGER_UNUSABLE, Refusal
from wire.runtime.chain import Link
from wire.runtime.files import full_disk_as_refusal, sync_folder

_PATIENCE: Final = 60.0
"""Seconds to wait for another process that is writing."""
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS entries (sequence INTEGER PRIMARY KEY, entry TEXT NOT NULL, "
    "previous TEXT NOT NULL, hash TEXT NOT NULL) STRICT",
    "CREATE TRIGGER IF NOT EXISTS no_update BEFORE UPDATE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
    "CREATE TRIGGER IF NOT EXISTS no_delete BEFORE DELETE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
)
_TABLE: Final = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'entries'"
_ROWS: Final = (
    "SELECT sequence, entry, previous, hash FROM entries WHERE sequence >= ? ORDER BY sequence"
)
_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@dataclass(frozen=True)
class LedgerTransaction:
    """Reads and appends entries within one SQLite transaction; invalid after it has ended."""

    _connection: sqlite3.Connection

    def links(self, first: int = 1) -> list[Link]:
        """Entries from number `first` on; LEDGER_BROKEN if one is not JSON. Their hashes are not checked."""
        if not self._connection.execute(_TABLE).fetchone()[0]:
            return []
        return [_link(*row) for row in self._connection.execute(_ROWS, (first,))]

    def write(self, link: Link) -> None:
        """Adds one entry to the transaction."""
        for statement in _SCHEMA:
            self._connection.execute(statement)
        text = json.dumps(link.entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        row = (link.sequence, text, link.previous, link.hash)
        self._connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", row)


class LedgerFile:
    """Readers and writers of several processes take turns; all errors are refusals."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def exists(self) -> bool:
        """True if there is a file, whatever is in it."""
        return self.path.exists()

    def create(self) -> None:
        """Makes the file, empty and for its owner only, unless it is there."""
        try:
            with full_disk_as_refusal(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
                inherit_owner(self.path)
                sync_folder(self.path.parent)
        except FileExistsError:
            pass
        except OSError as error:
            raise Refusal(LEDGER_UNUSABLE, path=self.path, why=error.strerror) from None

    def links(self, first: int = 1) -> list[Link]:
        """Entries from number `first` on as they are now; none if there is no file."""
        if not self.exists:
            return []
        with self._connected() as connection:
            connection.execute("BEGIN")
            return LedgerTransaction(connection).links(first)

    @contextmanager
    def writing(self) -> Iterator[LedgerTransaction]:
        """A transaction that keeps other writers out: committed and on the disk at its end, or undone."""
        with self._connected() as connection:
            # A single file that can be copied; what is committed then must not come undone after a power cut:
            # in this mode FULL does not sync the removal of the journal, EXTRA does.
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("BEGIN IMMEDIATE")
            yield LedgerTransaction(connection)
            connection.execute("COMMIT")

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        # For writing even to read: what a crash left unfinished has to be undone first. Never creates a file.
        address = f"{self.path.absolute().as_uri()}?mode=rw"
        try:
            connection = sqlite3.connect(address, _PATIENCE, isolation_level=None, uri=True)
            # Closing undoes a transaction that was not committed.
            with closing(connection):
                yield connection
        except sqlite3.Error as error:
            raise self._refusal(error) from error

    def _refusal(self, error: sqlite3.Error) -> Refusal:
        # An extended code has the kind of error in its last byte.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            return Refusal(DISK_FULL, path=self.path)
        if code in _DAMAGED:
            return Refusal(LEDGER_BROKEN, why=f"{self.path} is damaged ({error})")
        return Refusal(LEDGER_UNUSABLE, path=self.path, why=error)


def _link(sequence: int, text: str, previous: str, hash_: str) -> Link:
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict):
        raise Refusal(LEDGER_BROKEN, why=f"entry {sequence} is not readable")
    return Link(sequence, entry, previous, hash_)
