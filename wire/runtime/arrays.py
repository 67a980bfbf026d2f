"""Reads NPY and NPZ files, without unpickling."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wire.runtime.columns import UnusableFile, listed

NPY_MAGIC = b"\x93NUMPY"
_ZIP_MAGIC = b"PK"
_BLOCK_BYTES = 32 << 20


def array_names(path: Path) -> tuple[str, ...]:
    """Names of the arrays in an NPZ file."""
    loaded = _opened(path)
    if isinstance(loaded, np.ndarray):
        raise UnusableFile("it is a single array without a name", "Write it with numpy.savez.")
    with loaded:
        return tuple(loaded.files)


def read_array(path: Path, name: str | None = None) -> NDArray[np.generic]:
    """The array of an NPY file, memory-mapped, or the one called `name` of an NPZ file."""
    loaded = _opened(path)
    if isinstance(loaded, np.ndarray):
        if name is not None:
            raise UnusableFile("it is a single array without a name", "Do not name an array.")
        return loaded
    with loaded:
        chosen = _chosen(loaded.files, name)
        try:
            array = loaded[chosen]
        except Exception as error:
            raise _explained(error) from error
    if not isinstance(array, np.ndarray):
        raise UnusableFile(f"its entry {chosen} is not an array", "Write it with numpy.savez.")
    return array


def row_blocks(array: NDArray[np.generic]) -> Iterator[NDArray[np.generic]]:
    """The array in runs of rows of some megabytes each, so that no copy of the whole is made."""
    rows = max(1, _BLOCK_BYTES // max(1, array[:1].nbytes))
    for start in range(0, len(array), rows):
        yield array[start : start + rows]


def all_finite(array: NDArray[np.generic]) -> bool:
    """False if a number is NaN or infinite."""
    return all(bool(np.isfinite(block).all()) for block in row_blocks(array))


def _opened(path: Path) -> NDArray[np.generic] | np.lib.npyio.NpzFile:
    try:
        with path.open("rb") as file:
            magic = file.read(len(NPY_MAGIC))
        if magic != NPY_MAGIC and not magic.startswith(_ZIP_MAGIC):
            raise UnusableFile("it is not a NumPy file", "Write it with numpy.save or numpy.savez.")
        loaded: NDArray[np.generic] | np.lib.npyio.NpzFile
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        return loaded
    except UnusableFile:
        raise
    except Exception as error:
        # What numpy raises on damaged bytes is not documented: ValueError, SyntaxError, EOFError, ...
        raise _explained(error) from error


def _chosen(names: Sequence[str], name: str | None) -> str:
    if name is None and len(names) == 1:
        return names[0]
    if name is not None and name in names:
        return name
    why = f"it has {len(names)} arrays" if name is None else f"it has no array {name}"
    raise UnusableFile(why, f"Name one of its arrays: {listed(names)}.")


def _explained(error: Exception) -> UnusableFile:
    if isinstance(error, FileNotFoundError):
        return UnusableFile("there is no such file", "Check the path.")
    if isinstance(error, PermissionError):
        return UnusableFile("this user may not read it", "Check the file's permissions.")
    if isinstance(error, zipfile.BadZipFile) or "object" not in str(error).lower():
        return UnusableFile("it is damaged", "Write it again, or check the copy.")
    return UnusableFile(
        "it holds Python objects, which are never unpickled", "Save plain numbers instead."
    )
