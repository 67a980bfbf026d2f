"""Who may read what we write: nobody but the account that runs us.

Processes start with `keep_private`, so that new files have the mode 0600 and new folders 0700. What an earlier
release left wider is narrowed by `narrow` when a process starts, and found by `access_finding` when a doctor looks.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from wire.runtime.findings import Finding, ok, warning

log = structlog.get_logger()

ACCESS: Final = "file access"
_OTHERS: Final = 0o077
_SHOWN: Final = 3


@dataclass(frozen=True)
class Modes:
    """The modes of a folder and of what lies in it."""

    folder: int = 0o700
    file: int = 0o600


PRIVATE: Final = Modes()


@dataclass(frozen=True)
class Place:
    """A file, or a folder with all below it, that is ours, and the widest modes it may have."""

    path: Path
    modes: Modes = PRIVATE
    alone: bool = False
    """Only the folder itself: others may keep things in it."""


@dataclass(frozen=True)
class Exposed:
    """A path that more accounts can reach than should, or that belongs to another account."""

    path: Path
    mode: int
    owned: bool

    def __str__(self) -> str:
        whose = "" if self.owned else ", of another account"
        return f"{self.path} ({self.mode:04o}{whose})"


def keep_private() -> None:
    """From here on this process and its children make files that only their owner can use."""
    os.umask(_OTHERS)


def narrow(places: Sequence[Place]) -> list[Path]:
    """Takes from what is ours all access beyond its place's modes, and returns what was changed.

    Links are never followed, also not if one is put there at this moment; what belongs to another account is left.
    """
    changed = []
    for path, descriptor, modes in _opened(places):
        found = os.fstat(descriptor)
        wanted = stat.S_IMODE(found.st_mode) & _widest(found.st_mode, modes)
        if found.st_uid == os.geteuid() and wanted != stat.S_IMODE(found.st_mode):
            with suppress(OSError):
                os.chmod(_by_descriptor(descriptor), wanted)
                changed.append(path)
    return changed


def log_narrowed(changed: Sequence[Path]) -> None:
    """Says that something stood open until now: its owner may want to know who could have read it."""
    if changed:
        shown = [str(path) for path in changed[:_SHOWN]]
        log.warning("access_narrowed", paths=len(changed), first=shown)


def exposed(places: Sequence[Place]) -> list[Exposed]:
    """What `narrow` would change, and what belongs to an account that is neither this one nor the system's."""
    found = []
    for path, descriptor, modes in _opened(places):
        seen = os.fstat(descriptor)
        mode, owned = stat.S_IMODE(seen.st_mode), seen.st_uid in (os.geteuid(), 0)
        if mode & ~_widest(seen.st_mode, modes) or not owned:
            found.append(Exposed(path, mode, owned))
    return found


def access_finding(places: Sequence[Place], name: str = ACCESS) -> Finding:
    """Checks that nobody else can read keys, ballots, models and records."""
    found = exposed(places)
    if not found:
        return ok(name, "Only this account can read what lies here.")
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    sentence = f"Other accounts may reach {', '.join(map(str, found[:_SHOWN]))}{more}."
    advice = (
        "Restart what runs here, which narrows them, and consider who may have copied them."
        if all(each.owned for each in found)
        else "Give them with chown to the account that runs Consilium, and take all access from others."
    )
    return warning(name, sentence, advice)


def _widest(kind: int, modes: Modes) -> int:
    """The widest mode of a folder or file; the owner's own bits, such as a program's x, are left as they are."""
    most = modes.folder if stat.S_ISDIR(kind) else modes.file
    return most | 0o700


def _opened(places: Sequence[Place]) -> Iterator[tuple[Path, int, Modes]]:
    """Every regular file and folder of the places, opened without following links; another's that is closed is left out."""
    for place in places:
        path = place.path.absolute()
        descriptor = _open(path.name, path.parent)
        if descriptor is None:
            continue
        try:
            if place.alone:
                yield place.path, descriptor, place.modes
            else:
                yield from _tree(place.path, descriptor, place.modes)
        finally:
            os.close(descriptor)


def _tree(path: Path, descriptor: int, modes: Modes) -> Iterator[tuple[Path, int, Modes]]:
    yield path, descriptor, modes
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        return
    for name in _names(descriptor):
        below = _open(name, descriptor)
        if below is None:
            continue
        try:
            yield from _tree(path / name, below, modes)
        finally:
            os.close(below)


def _names(folder: int) -> list[str]:
    """What lies in a folder; nothing if it cannot be read."""
    try:
        return sorted(os.listdir(_by_descriptor(folder)))
    except OSError:
        return []


def _by_descriptor(descriptor: int) -> str:
    """A path to what is open: the calls that take a descriptor refuse one opened with O_PATH."""
    return f"/proc/self/fd/{descriptor}"


def _open(name: str, folder: Path | int) -> int | None:
    """A descriptor that only names a regular file or folder; None for links, sockets and what is not there.

    Closing an ordinary descriptor would end every record lock that this process holds on the file, its own and SQLite's.
    """
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = (
            os.open(folder / name, flags)
            if isinstance(folder, Path)
            else os.open(name, flags, dir_fd=folder)
        )
    except OSError:
        return None
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind) or stat.S_ISDIR(kind):
        return descriptor
    os.close(descriptor)
    return None
