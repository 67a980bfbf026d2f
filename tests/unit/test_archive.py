"""Folders as streams: whole or refused, for their owner only, and never written anywhere else."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from wire.errors import ConfigurationError
from wire.runtime.archive import (
    STREAM,
    backup_from,
    backup_to,
    pack,
    temporary_folder,
    unpack,
)

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, params=["filters", "Debian's Python 3.11.2"])
def _python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tarfile's filters, and as before there were any."""
    if request.param != "filters":
        monkeypatch.delattr(tarfile, "data_filter")


def packed(tmp_path: Path, kind: str = "trainer") -> bytes:
    folder = tmp_path / "from"
    (folder / "tasks" / "flu").mkdir(parents=True)
    (folder / "ledger.db").write_bytes(b"entries" * 1000)
    (folder / "tasks" / "flu" / "ballot").write_bytes(b"\x01\x02")
    (folder / "tasks" / "empty").touch(mode=0o644)
    out = io.BytesIO()
    pack(folder, out, kind)
    return out.getvalue()


def filled(tmp_path: Path, content: bytes, kind: str = "trainer") -> Path:
    folder = tmp_path / "to"
    folder.mkdir()
    unpack(io.BytesIO(content), folder, kind)
    return folder


def test_what_went_in_comes_out(tmp_path: Path) -> None:
    folder = filled(tmp_path, packed(tmp_path))
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {
        "ledger.db",
        "tasks/flu/ballot",
        "tasks/empty",
    }
    assert (folder / "ledger.db").read_bytes() == b"entries" * 1000
    assert (folder / "tasks" / "flu" / "ballot").read_bytes() == b"\x01\x02"


def test_nobody_but_the_owner_reads_it(tmp_path: Path) -> None:
    folder = filled(tmp_path, packed(tmp_path))
    for path in (folder, *folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


@pytest.mark.parametrize("left", [0, 100, 512, 1024, 4096, 9000])
def test_half_of_it_is_never_taken_for_the_whole(tmp_path: Path, left: int) -> None:
    content = packed(tmp_path)
    assert left < len(content)
    with pytest.raises(ConfigurationError):
        filled(tmp_path, content[:left])


def test_every_place_to_cut_it_off_is_noticed(tmp_path: Path) -> None:
    content = packed(tmp_path)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        boundaries = [member.offset for member in archive]
    for number, end in enumerate(boundaries):
        folder = tmp_path / f"to-{number}"
        folder.mkdir()
        with pytest.raises(ConfigurationError):
            unpack(io.BytesIO(content[:end]), folder, "trainer")


def test_another_kind_of_backup_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no backup of a trainer"):
        filled(tmp_path, packed(tmp_path, "coordinator"))


def member(
    *names: str, kind: bytes = tarfile.REGTYPE, link: str = "", content: bytes = b""
) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, link, len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.parametrize(
    "stream",
    [
        member("/etc/passwd"),
        member("../outside"),
        member("tasks/../../outside"),
        member("without/its/folder"),
        member("link", kind=tarfile.SYMTYPE, link="/etc"),
        member("link", kind=tarfile.SYMTYPE, link="ledger.db"),
        member("hard", kind=tarfile.LNKTYPE, link="ledger.db"),
        member("device", kind=tarfile.CHRTYPE),
        member("pipe", kind=tarfile.FIFOTYPE),
    ],
)
def test_what_would_write_elsewhere_is_refused(tmp_path: Path, stream: bytes) -> None:
    with pytest.raises(ConfigurationError, match="none of ours"):
        filled(tmp_path, stream)
    assert not (tmp_path / "outside").exists()
    assert list((tmp_path / "to").iterdir()) == []


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE])
def test_nothing_is_written_over(tmp_path: Path, kind: bytes) -> None:
    content = b"first" if kind == tarfile.REGTYPE else b""
    with pytest.raises(ConfigurationError, match="none of ours"):
        filled(tmp_path, member("same", "same", kind=kind, content=content))
    if content:
        assert (tmp_path / "to" / "same").read_bytes() == b"first"


def test_noise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        filled(tmp_path, b"no archive at all" * 100)


def test_a_file_is_never_replaced(tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    with backup_to(file, None) as written:
        written.write(b"first")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(ConfigurationError, match="exists"), backup_to(file, None):
        pass
    assert file.read_bytes() == b"first"
    with (
        pytest.raises(ConfigurationError, match="No such file"),
        backup_from(tmp_path / "none", str),
    ):
        pass


def test_a_terminal_is_no_place_for_a_backup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with pytest.raises(ConfigurationError, match="terminal"), backup_to(STREAM, None):
        pass


def test_a_file_that_did_not_get_whole_goes_again(tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"

    def interrupted() -> None:
        with backup_to(file, None) as written:
            written.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not file.exists()


def test_what_a_killed_command_left_goes_a_day_later(tmp_path: Path) -> None:
    old, fresh = tmp_path / ".backup-old", tmp_path / ".backup-fresh"
    for left in (old, fresh):
        left.mkdir()
        (left / "key").touch()
    os.utime(old, (0, 0))
    with temporary_folder(tmp_path) as place:
        assert list(place.iterdir()) == []
        # It may be another command's that still works.
        assert (old.exists(), fresh.exists()) == (False, True)
    assert not place.exists()
