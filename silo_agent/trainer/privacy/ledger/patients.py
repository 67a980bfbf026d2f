"""Whose data were released from, by data set: salted hashes, so that the same patients under a new name are noticed.

A data set's name is what the ledger charges. Were it changed over the same patients, their budget would begin anew. So
before a session opens, its patients are compared with those of every other data set that something was released
from, and kept. Salt and hashes are in one file on the private side and never leave it; without the salt a hash says
nothing, and the file is as private as the data: who has both can test whether a person is in it.

Patients are compared by id where both data sets have ids, else by whole rows.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import numpy as np

from silo_agent.trainer.data.private_data import PrivateData
from silo_agent.trainer.data.unit_keys import Words, patient_marks, row_marks
from silo_agent.trainer.privacy.ledger.witness import inherit_owner
from wire.errors import DISK_FULL, PATIENT_RECORD_UNUSABLE, Refusal
from wire.runtime.files import full_disk_as_refusal, sync_folder

_SALT_BYTES: Final = 32
_HASH_BYTES: Final = 16
_PATIENCE: Final = 60.0
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS salt (only INTEGER PRIMARY KEY CHECK (only = 1), salt BLOB NOT NULL) STRICT",
    "CREATE TABLE IF NOT EXISTS marks (dataset TEXT NOT NULL, kind TEXT NOT NULL, mark BLOB NOT NULL, "
    "PRIMARY KEY (kind, mark, dataset)) STRICT, WITHOUT ROWID",
)


@dataclass(frozen=True, eq=False)
class Marks:
    """What patients and rows of a file are recognised by; not yet salted."""

    rows: Words = field(repr=False)
    patients: Words | None = field(repr=False)
    """None where rows have no patient id."""

    @classmethod
    def of(cls, private: PrivateData) -> Self:
        """Of a file as it was read."""
        return cls(np.unique(row_marks(private)), patient_marks(private))


class PatientRecord:
    """One SQLite file. PATIENT_RECORD_UNUSABLE if it cannot be read or written, DISK_FULL if there is no room."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def sizes(self) -> dict[str, int]:
        """How many hashes are kept for each data set."""
        if not self.path.exists():
            return {}
        with self._connected() as connection:
            rows = connection.execute("SELECT dataset, count(*) FROM marks GROUP BY dataset")
            return dict(rows.fetchall())

    def shared(self, dataset: str, marks: Marks) -> dict[str, int]:
        """How many of these patients (or rows) are kept for each data set but this one; none is left out."""
        if not self.path.exists():
            return {}
        with self._connected() as connection:
            salt = _salt(connection)
            connection.execute("CREATE TEMP TABLE here (kind TEXT, mark BLOB)")
            _insert(connection, "INSERT INTO here VALUES (?, ?)", _salted(salt, marks))
            by_id = {
                name
                for (name,) in connection.execute(
                    "SELECT DISTINCT dataset FROM marks WHERE kind = 'patient'"
                )
                if marks.patients is not None
            }
            found = connection.execute(
                "SELECT dataset, kind, count(*) FROM marks JOIN here USING (kind, mark) "
                "WHERE dataset <> ? GROUP BY dataset, kind",
                (dataset,),
            )
            return {
                name: count
                for name, kind, count in found
                if kind == ("patient" if name in by_id else "row")
            }

    def keep(self, dataset: str, marks: Marks) -> int:
        """Adds these patients to a data set's, fsync'd; how many hashes it has then."""
        self._create()
        with self._connected() as connection:
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                connection.execute(statement)
            fresh = secrets.token_bytes(_SALT_BYTES)
            connection.execute("INSERT OR IGNORE INTO salt VALUES (1, ?)", (fresh,))
            salted = _salted(_salt(connection), marks)
            statement = "INSERT OR IGNORE INTO marks (dataset, kind, mark) VALUES (?, ?, ?)"
            _insert(connection, statement, ((dataset, kind, mark) for kind, mark in salted))
            connection.execute("COMMIT")
            count = connection.execute("SELECT count(*) FROM marks WHERE dataset = ?", (dataset,))
            return int(count.fetchone()[0])

    def _create(self) -> None:
        try:
            with full_disk_as_refusal(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
                inherit_owner(self.path)
                sync_folder(self.path.parent)
        except FileExistsError:
            pass
        except OSError as error:
            raise Refusal(PATIENT_RECORD_UNUSABLE, why=error.strerror) from None

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        address = f"{self.path.absolute().as_uri()}?mode=rw"
        try:
            connection = sqlite3.connect(address, _PATIENCE, isolation_level=None, uri=True)
            with closing(connection):
                yield connection
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
                raise Refusal(DISK_FULL, path=self.path) from None
            raise Refusal(PATIENT_RECORD_UNUSABLE, why=error) from None


def _salt(connection: sqlite3.Connection) -> bytes:
    found = connection.execute("SELECT salt FROM salt").fetchone()
    if found is None:
        raise sqlite3.DatabaseError("it has no salt")
    return bytes(found[0])


def _salted(salt: bytes, marks: Marks) -> Iterator[tuple[str, bytes]]:
    for kind, values in (("patient", marks.patients), ("row", marks.rows)):
        if values is None:
            continue
        keyed = hashlib.blake2b(kind.encode(), key=salt, digest_size=_HASH_BYTES)
        for value in values.tolist():
            one = keyed.copy()
            one.update(value.to_bytes(8, "big"))
            yield kind, one.digest()


def _insert(
    connection: sqlite3.Connection, statement: str, rows: Iterator[tuple[object, ...]]
) -> None:
    connection.executemany(statement, rows)
