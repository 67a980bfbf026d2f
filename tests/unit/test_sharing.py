"""Modes of what two accounts share, and of what one account has alone."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from wire.public_file import PublicSetFolder
from wire.runtime.sharing import let_group_connect, make_folder, make_private_folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """As the images lay it out."""
    folder = tmp_path / "exchange"
    folder.mkdir()
    folder.chmod(0o3770)
    return folder


def placed(folder: PublicSetFolder, tmp_path: Path) -> Path:
    partial = folder.unfinished()
    partial.write_bytes(b"rows")
    return folder.path(folder.adopt(partial))


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_downloads_in_a_shared_folder_are_read_by_its_group_and_by_nobody_else(
    shared: Path, tmp_path: Path, umask: int
) -> None:
    before = os.umask(umask)
    try:
        file = placed(PublicSetFolder(shared / "public-sets"), tmp_path)
    finally:
        os.umask(before)
    assert mode(shared / "public-sets") == 0o3770
    assert mode(file) == 0o640


def test_downloads_of_one_account_are_its_own(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "exchange")
    file = placed(PublicSetFolder(tmp_path / "exchange" / "public-sets"), tmp_path)
    assert mode(tmp_path / "exchange") == mode(file.parent) == 0o700
    assert mode(file) == 0o600


def test_a_folder_that_was_laid_out_keeps_its_modes(shared: Path) -> None:
    make_private_folder(shared)
    make_folder(shared)
    assert mode(shared) == 0o3770


def test_a_private_folder_does_not_inherit_a_group(tmp_path: Path) -> None:
    tmp_path.chmod(0o2775)
    make_private_folder(tmp_path / "exchange")
    assert mode(tmp_path / "exchange") == 0o700


@pytest.mark.parametrize(("folder_mode", "expected"), [(0o3770, 0o660), (0o700, 0o600)])
def test_who_may_connect_follows_the_folder(
    tmp_path: Path, folder_mode: int, expected: int
) -> None:
    folder = tmp_path / "x"
    folder.mkdir()
    folder.chmod(folder_mode)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "s"))
        let_group_connect(folder / "s")
    assert mode(folder / "s") == expected
