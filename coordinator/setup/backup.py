"""A copy of a consortium's folder, made while it is served. The copy is such a folder: to restore it, serve it.

As a stream it gets out of a container and into another.

The database comes first, as it stood at one moment. Public files lie in their folders before the database names
them and are never removed, so those copied later have all that the copied database names.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import yaml

from coordinator.pki.rotation import Authorities
from coordinator.settings import CoordinatorHome
from coordinator.store.sqlite_copy import copy_database, named_in, sqlite_file
from wire.errors import ConfigurationError
from wire.runtime.archive import pack, temporary_folder, unpack
from wire.runtime.files import digest_of, full_disk_as_refusal, write_atomically

_LOCKS_AND_PARTS = shutil.ignore_patterns(".*")
_KIND = "coordinator"


@dataclass(frozen=True)
class Backup:
    """What was copied."""

    bytes: int
    public_files: int
    with_database: bool
    """False if the database is PostgreSQL's, which is copied by its own tools."""


def back_up(home: CoordinatorHome, out: Path) -> Backup:
    """Copies all that a coordinator must not lose to `out`, which appears when it is complete. No admin's key is in it.

    It holds the authority's key: only its owner can read it. ConfigurationError if `out` exists, or if something
    copied is damaged.
    """
    if out.exists():
        raise ConfigurationError(f"{out} is there already.", "Name a new folder for every backup.")
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        with full_disk_as_refusal(out):
            part.mkdir(parents=True, mode=0o700)
            made = _fill(home, CoordinatorHome(part))
            part.rename(out)
    except OSError as error:
        why = error.strerror or "a file could not be copied"
        raise ConfigurationError(f"{out} cannot be written: {why}.") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return made


def stream(home: CoordinatorHome, out: IO[bytes]) -> Backup:
    """The same as one stream of bytes."""
    with _disk_errors_explained(home), temporary_folder(home.root) as place:
        made = back_up(home, place / _KIND)
        pack(place / _KIND, out, _KIND)
    return made


def restore(home: CoordinatorHome, source: IO[bytes]) -> None:
    """Fills a folder that holds no consortium with one that `stream` wrote; it appears when it is complete.

    ConfigurationError if there is one, or if the copy is damaged.
    """
    if home.settings_file.exists():
        raise ConfigurationError(
            f"There is a consortium in {home.root}, and nothing is put over it.",
            "Restore into an empty folder or volume.",
        )
    with _disk_errors_explained(home):
        home.root.mkdir(parents=True, exist_ok=True)
        with temporary_folder(home.root) as place:
            copy = CoordinatorHome(place)
            unpack(source, place, _KIND)
            database = place / "coordinator.db"
            _require_whole(copy, named_in(database) if database.exists() else frozenset())
            # Settings come last: until then nobody takes it for a consortium.
            for path in sorted(place.iterdir(), key=lambda path: path == copy.settings_file):
                path.rename(home.root / path.name)


@contextmanager
def _disk_errors_explained(home: CoordinatorHome) -> Iterator[None]:
    try:
        with full_disk_as_refusal(home.root):
            yield
    except OSError as error:
        why = error.strerror or "a file could not be written"
        raise ConfigurationError(f"{home.root} cannot be written: {why}.") from error


def _fill(home: CoordinatorHome, copy: CoordinatorHome) -> Backup:
    settings = home.settings()
    live = sqlite_file(home.database_url(settings))
    named = copy_database(live, copy.root / "coordinator.db") if live else frozenset[str]()
    shutil.copyfile(home.settings_file, copy.settings_file)
    if live is not None and settings.database:
        # The database lies beside the copied settings, wherever the live one is.
        beside = settings.model_copy(update={"database": ""}).model_dump(mode="json")
        write_atomically(copy.settings_file, yaml.safe_dump(beside, sort_keys=False).encode())
    _copy_folders(home, copy)
    _require_whole(copy, named)
    files = [path for path in copy.root.rglob("*") if path.is_file()]
    public = [path for path in files if path.parent in (copy.public_sets, copy.extractors)]
    return Backup(sum(path.stat().st_size for path in files), len(public), live is not None)


def _copy_folders(home: CoordinatorHome, copy: CoordinatorHome) -> None:
    folders = ("authority", "server", "public_sets", "extractors")
    for source, target in ((getattr(home, name), getattr(copy, name)) for name in folders):
        if source.exists():
            shutil.copytree(source, target, ignore=_LOCKS_AND_PARTS)


def _require_whole(copy: CoordinatorHome, named: frozenset[str]) -> None:
    """ConfigurationError for a copy that could not be served: now, not when it is needed."""
    # An authority that is replaced while it is copied may be incomplete.
    Authorities.load(copy.authority)
    held: set[str] = set()
    for folder in (copy.public_sets, copy.extractors):
        held |= {path.name for path in folder.glob("*") if digest_of(path) == path.name}
    lacking = sorted(named - held)
    if lacking:
        raise ConfigurationError(
            f"{len(lacking)} public files are missing or damaged, the first of them {lacking[0]}.",
            "Publish the same file again with `consilium public-set add`, then back up again.",
        )
