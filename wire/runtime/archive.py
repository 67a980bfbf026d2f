"""A folder as one tar stream: how a backup leaves and enters a container whose files nobody outside it can read."""

from __future__ import annotations

import copy
import os
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, cast

from wire.errors import ConfigurationError
from wire.runtime.sealed import SealingWriter, opened

_TEMPORARY_PREFIX = ".backup-"
_ABANDONED_SECONDS = 86400.0
_PIECE = 1 << 20

STREAM = Path("-")
"""On the command line: standard output or input."""


def pack(folder: Path, out: IO[bytes], kind: str) -> None:
    """Writes the content of `folder` as a tar stream, ended by a marker that names the `kind` of backup."""
    with tarfile.open(fileobj=out, mode="w|") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name)
        archive.addfile(tarfile.TarInfo(_end_marker(kind)))


def unpack(source: IO[bytes], folder: Path, kind: str) -> None:
    """Fills the empty `folder` from what `pack` wrote, closes it to other users and waits for the disk.

    ConfigurationError if the stream is no backup of this kind, is incomplete, or holds anything but new files
    and folders below `folder`.
    """
    # tarfile restricts a file's mode only once it is written: until then the folder keeps others out.
    folder.chmod(0o700)
    try:
        with tarfile.open(fileobj=source, mode="r|") as archive:
            _extract(archive, folder)
        # To the end, which says whether an encrypted stream is whole.
        while source.read(_PIECE):
            pass
    except (tarfile.TarError, EOFError) as error:
        raise ConfigurationError(f"The backup cannot be read: {error}.") from error
    try:
        (folder / _end_marker(kind)).unlink()
    except FileNotFoundError:
        raise ConfigurationError(
            f"This is no backup of a {kind}, or it ends too early.", "Give the whole file."
        ) from None
    os.sync()


@contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder inside `folder`, on the same disk, removed after the block.

    Also removes those that killed commands left there more than a day ago.
    """
    for abandoned in folder.glob(f"{_TEMPORARY_PREFIX}*"):
        if time.time() - abandoned.stat().st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(abandoned, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_TEMPORARY_PREFIX, dir=folder) as made:
        yield Path(made)


@contextmanager
def backup_to(file: Path, passphrase: str | None) -> Iterator[IO[bytes]]:
    """As `_open` for writing; what is written is encrypted if there is a passphrase."""
    with _open(file, "w") as out:
        if passphrase is None:
            yield out
            return
        sealing = SealingWriter(out, passphrase)
        yield cast("IO[bytes]", sealing)
        sealing.finish()


@contextmanager
def backup_from(file: Path, passphrase: Callable[[], str]) -> Iterator[IO[bytes]]:
    """As `_open` for reading; an encrypted backup is recognised, and `passphrase` asked for."""
    with _open(file, "r") as source:
        yield opened(source, passphrase)


@contextmanager
def _open(file: Path, mode: str) -> Iterator[IO[bytes]]:
    """Opens a file, or standard input or output for `STREAM`; `mode` is "r" or "w".

    A new file has mode 0600, never replaces another, and is removed if the block fails.
    """
    if file == STREAM:
        if "w" in mode and sys.stdout.isatty():
            # A terminal would also change line ends on the way: `docker compose exec` has one unless told --no-TTY.
            raise ConfigurationError(
                "A backup is no text for a terminal.", "Send it to a file: … --out - > backup.tar"
            )
        yield sys.stdout.buffer if "w" in mode else sys.stdin.buffer
        return
    try:
        if "w" in mode:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(descriptor, "wb") as written:
                    yield written
                    written.flush()
                    os.fsync(descriptor)
            except BaseException:
                file.unlink()
                raise
        else:
            with file.open("rb") as read:
                yield read
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror or error}.") from error


def _end_marker(kind: str) -> str:
    return f".end-of-{kind}"


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter=_restricted)  # noqa: S202  stricter than `data`
        return
    # Debian 12 has Python 3.11.2, which came before the filters.
    for member in archive:
        archive.extract(_as_packed(member, str(folder)), folder)


def _restricted(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
    """tarfile's data filter, narrowed to what `pack` writes."""
    try:
        safe = tarfile.data_filter(member, folder)
    except tarfile.FilterError as error:
        raise _foreign(member) from error
    # It turns absolute names into relative ones.
    if safe.name != member.name:
        raise _foreign(member)
    return _as_packed(safe, folder)


def _as_packed(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
    """A new file (0600) or folder (0700) of our own; ConfigurationError for anything else, links among it."""
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or not (member.isreg() or member.isdir()):
        raise _foreign(member)
    target = Path(folder, member.name)
    # tarfile would overwrite files and make parents.
    if os.path.lexists(target) or not target.parent.is_dir():
        raise _foreign(member)
    ours = copy.copy(member)
    ours.mode = 0o700 if member.isdir() else 0o600
    ours.uid, ours.gid, ours.uname, ours.gname = os.geteuid(), os.getegid(), "", ""
    return ours


def _foreign(member: tarfile.TarInfo) -> ConfigurationError:
    return ConfigurationError(f"The backup is none of ours: it holds {member.name!r}.")
