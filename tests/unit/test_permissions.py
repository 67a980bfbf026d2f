"""Who may read what we keep: modes are narrowed at start, links are not followed, doctors say what is open."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from silo_agent.shared.home import SiloHome
from wire.runtime.files import write_atomically
from wire.runtime.findings import Status
from wire.runtime.permissions import (
    PRIVATE,
    Modes,
    Place,
    access_finding,
    exposed,
    keep_private,
    narrow,
)


@pytest.fixture(autouse=True)
def _careless() -> Iterator[None]:
    """An account whose umask gives everything to everybody."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def filled(folder: Path) -> Path:
    """A folder of an earlier release."""
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "ballot").write_bytes(b"bits")
    (folder / "model").write_bytes(b"weights")
    return folder


def test_what_stood_open_is_narrowed_once(tmp_path: Path) -> None:
    folder = filled(tmp_path / "trainer")
    changed = narrow([Place(folder)])
    assert {path.relative_to(folder).as_posix() for path in changed} == {
        ".",
        "below",
        "below/ballot",
        "model",
    }
    assert [mode(folder), mode(folder / "below"), mode(folder / "model")] == [0o700, 0o700, 0o600]
    assert not narrow([Place(folder)])
    assert not exposed([Place(folder)])


def test_links_are_not_followed(tmp_path: Path) -> None:
    folder, elsewhere = filled(tmp_path / "ours"), filled(tmp_path / "theirs")
    (folder / "link").symlink_to(elsewhere / "model")
    (folder / "folder").symlink_to(elsewhere)
    (tmp_path / "place").symlink_to(elsewhere)
    os.mkfifo(folder / "pipe")
    narrow([Place(folder), Place(tmp_path / "place"), Place(tmp_path / "nothing")])
    assert [mode(elsewhere), mode(elsewhere / "model")] == [0o777, 0o666]


def test_a_folder_that_others_use_too_is_narrowed_alone(tmp_path: Path) -> None:
    folder = filled(tmp_path / "home")
    narrow([Place(folder, Modes(folder=0o750), alone=True)])
    assert [mode(folder), mode(folder / "model")] == [0o750, 0o666]


def test_a_shared_folder_keeps_the_access_it_is_given(tmp_path: Path) -> None:
    shared = Modes(folder=0o2770, file=0o640)
    folder = filled(tmp_path / "exchange")
    folder.chmod(shared.folder)
    narrow([Place(folder, shared)])
    assert [mode(folder) & 0o777, mode(folder / "model")] == [0o770, 0o640]


def test_a_process_makes_files_for_its_owner_only(tmp_path: Path) -> None:
    keep_private()
    filled(tmp_path / "new")
    assert not exposed([Place(tmp_path / "new")])


def test_an_atomic_write_is_for_its_owner_whatever_the_umask(tmp_path: Path) -> None:
    write_atomically(tmp_path / "ballot", b"bits")
    assert mode(tmp_path / "ballot") == 0o600


@pytest.mark.parametrize("module", ["wire.runtime.cli", "silo_agent.trainer"])
def test_every_program_of_ours_begins_with_it(module: str) -> None:
    """By its source: nothing may be written before."""
    path = Path(module.replace(".", "/"))
    source = (path / "__main__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    assert source.index("keep_private()") < source.index("try:\n", source.index("keep_private()"))


def test_a_silos_doctor_names_what_others_can_read(tmp_path: Path) -> None:
    home = SiloHome(tmp_path / "silo")
    for folder in (home.agent, home.identity, home.exchange, home.trainer):
        filled(folder)
    found = access_finding(home.network_side)
    assert found.status is Status.WARNING
    assert str(home.identity) in found.sentence
    narrow([*home.network_side, *home.private_side])
    assert access_finding(home.network_side).status is Status.OK
    assert access_finding(home.private_side).status is Status.OK
    assert mode(home.exchange) == PRIVATE.folder
