"""Backups of a coordinator's folder: complete, read back, and only there when they are whole."""

from __future__ import annotations

import io
import sqlite3
import stat
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from coordinator.cli.coordinator import init
from coordinator.pki.rotation import Authorities
from coordinator.settings import CoordinatorHome
from coordinator.setup.backup import back_up, restore, stream
from coordinator.store import Store
from coordinator.store.actors import LocalActor
from wire.errors import ConfigurationError
from wire.runtime.files import digest_of

pytestmark = pytest.mark.slow

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def home(tmp_path: Path) -> CoordinatorHome:
    """A consortium with one public set."""
    init(home=tmp_path / "live", host=["localhost"])
    made = CoordinatorHome(tmp_path / "live")
    made.public_sets.mkdir()
    file = made.public_sets / "new"
    file.write_bytes(b"rows")
    digest = digest_of(file)
    file.rename(made.public_sets / digest)
    (made.public_sets / ".upload-1.part").write_bytes(b"half")
    store = Store(made.database_url(made.settings()))
    store.public_sets.add("wards", digest, 1, 4, {}, NOW, LocalActor("admin/admin"))
    store.close()
    return made


def test_a_backup_can_be_served(home: CoordinatorHome, tmp_path: Path) -> None:
    made = back_up(home, tmp_path / "copy")
    copy = CoordinatorHome(tmp_path / "copy")
    assert (made.public_files, made.with_database) == (1, True)
    assert copy.settings() == home.settings()
    assert (
        Authorities.load(copy.authority).signing.fingerprint
        == Authorities.load(home.authority).signing.fingerprint
    )
    store = Store(copy.database_url(copy.settings()))
    assert [held.name for held in store.public_sets.all()] == ["wards"]
    assert store.members.admins()
    store.close()
    assert not list(copy.root.rglob(".*")), "no lock and no part of a file"


def test_only_its_owner_can_read_it(home: CoordinatorHome, tmp_path: Path) -> None:
    back_up(home, tmp_path / "copy")
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o700
    for key in (tmp_path / "copy").rglob("*key*"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_it_has_what_is_committed_while_someone_else_writes(
    home: CoordinatorHome, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(home.root / "coordinator.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE revisions SET value = 99")
        back_up(home, tmp_path / "copy")
        writer.execute("COMMIT")
    with closing(sqlite3.connect(tmp_path / "copy" / "coordinator.db")) as copy:
        assert copy.execute("SELECT value FROM revisions").fetchone() != (99,)


def test_a_database_elsewhere_comes_to_lie_beside_its_settings(
    home: CoordinatorHome, tmp_path: Path
) -> None:
    (home.root / "coordinator.db").rename(tmp_path / "other.db")
    values = yaml.safe_load(home.settings_file.read_text())
    home.settings_file.write_text(
        yaml.safe_dump(values | {"database": f"sqlite:///{tmp_path}/other.db"})
    )
    back_up(home, tmp_path / "copy")
    assert CoordinatorHome(tmp_path / "copy").settings().database == ""
    assert (tmp_path / "copy" / "coordinator.db").is_file()


def test_of_postgresql_only_the_folder_is_copied(home: CoordinatorHome, tmp_path: Path) -> None:
    values = yaml.safe_load(home.settings_file.read_text())
    values["database"] = "postgresql+psycopg://consilium@db.example.org/consilium"
    home.settings_file.write_text(yaml.safe_dump(values))
    assert not back_up(home, tmp_path / "copy").with_database
    assert not (tmp_path / "copy" / "coordinator.db").exists()
    assert CoordinatorHome(tmp_path / "copy").settings().database == values["database"]


def damaged_set(home: CoordinatorHome) -> None:
    (file,) = (path for path in home.public_sets.iterdir() if path.name[0] != ".")
    file.write_bytes(b"rats")


def missing_set(home: CoordinatorHome) -> None:
    (file,) = (path for path in home.public_sets.iterdir() if path.name[0] != ".")
    file.unlink()


def damaged_database(home: CoordinatorHome) -> None:
    path = home.root / "coordinator.db"
    pages = bytearray(path.read_bytes())
    pages[4096 : 3 * 4096] = b"\xff" * (2 * 4096)
    path.write_bytes(pages)


def missing_database(home: CoordinatorHome) -> None:
    (home.root / "coordinator.db").unlink()


def missing_key(home: CoordinatorHome) -> None:
    for key in home.authority.glob("*key*"):
        key.unlink()


@pytest.mark.parametrize(
    "damage", [damaged_set, missing_set, damaged_database, missing_database, missing_key]
)
def test_what_could_not_be_served_is_no_backup(
    home: CoordinatorHome, tmp_path: Path, damage: object
) -> None:
    assert callable(damage)
    damage(home)
    with pytest.raises(ConfigurationError):
        back_up(home, tmp_path / "backups" / "copy")
    assert not list((tmp_path / "backups").iterdir())


def test_an_earlier_backup_is_never_replaced(home: CoordinatorHome, tmp_path: Path) -> None:
    back_up(home, tmp_path / "copy")
    with pytest.raises(ConfigurationError, match="already"):
        back_up(home, tmp_path / "copy")


def streamed(home: CoordinatorHome) -> bytes:
    out = io.BytesIO()
    stream(home, out)
    return out.getvalue()


def test_a_stream_becomes_the_same_consortium(home: CoordinatorHome, tmp_path: Path) -> None:
    again = CoordinatorHome(tmp_path / "again")
    restore(again, io.BytesIO(streamed(home)))
    assert again.settings() == home.settings()
    assert (
        Authorities.load(again.authority).signing.fingerprint
        == Authorities.load(home.authority).signing.fingerprint
    )
    store = Store(again.database_url(again.settings()))
    assert [held.name for held in store.public_sets.all()] == ["wards"]
    store.close()
    for folder in (home.root, again.root):
        assert not [path for path in folder.iterdir() if path.name.startswith((".backup", ".rest"))]


def test_a_consortium_is_never_put_over_another(home: CoordinatorHome) -> None:
    content = streamed(home)
    before = Authorities.load(home.authority).signing.fingerprint
    with pytest.raises(ConfigurationError, match="There is a consortium"):
        restore(home, io.BytesIO(content))
    assert Authorities.load(home.authority).signing.fingerprint == before


def test_half_a_stream_leaves_no_consortium(home: CoordinatorHome, tmp_path: Path) -> None:
    content, again = streamed(home), CoordinatorHome(tmp_path / "again")
    for end in (0, 1000, len(content) // 2, len(content) - 11_000):
        with pytest.raises(ConfigurationError):
            restore(again, io.BytesIO(content[:end]))
        assert not again.settings_file.exists()
        assert list(again.root.iterdir()) == []
