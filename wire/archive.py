"""A folder as one stream of bytes: how a backup leaves a container, and enters one, where nobody else sees its files."""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from wire.errors import ConfigurationError

_ASIDE = ".backup-"
_LEFT_SECONDS = 86400.0

STREAM = Path("-")
"""What a person writes for standard output or input."""


def pack(folder: Path, out: IO[bytes], kind: str) -> None:
    """Writes what is in `folder`, and behind it what kind of backup has ended here."""
    with tarfile.open(fileobj=out, mode="w|") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name)
        archive.addfile(tarfile.TarInfo(_end(kind)))


def unpack(source: IO[bytes], folder: Path, kind: str) -> None:
    """Fills an empty folder, for its owner only, and waits for the disk.

    ConfigurationError if the stream is no backup of this kind, is not whole, or would write anywhere else.
    """
    try:
        with tarfile.open(fileobj=source, mode="r|") as archive:
            for member in archive:
                _extract(archive, member, folder)
    except (tarfile.TarError, EOFError) as error:
        raise ConfigurationError(f"The backup cannot be read: {error}.") from error
    try:
        (folder / _end(kind)).unlink()
    except FileNotFoundError:
        raise ConfigurationError(
            f"This is no backup of a {kind}, or it ends too early.", "Give the whole file."
        ) from None
    os.sync()


@contextmanager
def aside(folder: Path) -> Iterator[Path]:
    """An empty place on the disk of `folder`, gone after the block; what a killed command left of another goes a day later."""
    for left in folder.glob(f"{_ASIDE}*"):
        if time.time() - left.stat().st_mtime > _LEFT_SECONDS:
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_ASIDE, dir=folder) as made:
        yield Path(made)


@contextmanager
def opened(file: Path, mode: str) -> Iterator[IO[bytes]]:
    """A file, or standard input or output.

    A new file is for its owner only, never replaces another, and goes again if it does not get whole.
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


def _end(kind: str) -> str:
    return f".end-of-{kind}"


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or not (member.isfile() or member.isdir()):
        raise ConfigurationError(f"The backup is none of ours: it holds {str(name)!r}.")
    target = folder / name
    if member.isdir():
        target.mkdir(mode=0o700)
        return
    content = archive.extractfile(member)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        if content is not None:
            shutil.copyfileobj(content, file)
