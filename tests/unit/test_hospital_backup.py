"""Backups of a hospital's private side: the ledger knows every ballot beside it, and nothing is put over anything."""

from __future__ import annotations

import io
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from silo_agent.shared.home import SiloHome
from silo_agent.trainer.backup import Part, back_up_part, restore_part
from wire.errors import ConfigurationError

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> SiloHome:
    made = SiloHome(tmp_path / "live")
    (made.tasks / "flu").mkdir(parents=True)
    (made.tasks / "flu" / "ballot").write_bytes(b"\x01")
    (made.trainer / ".half.part").write_bytes(b"half")
    made.trainer_lock.touch()
    made.approvals.write_text("{}\n")
    made.ledger_witness.parent.mkdir()
    made.ledger_witness.write_text("{}")
    with closing(sqlite3.connect(made.ledger)) as ledger:
        ledger.execute("PRAGMA journal_mode = WAL")
        ledger.execute("CREATE TABLE entries (sequence INTEGER)")
        ledger.execute("INSERT INTO entries VALUES (1)")
        ledger.commit()
    return made


def copied(home: SiloHome, part: Part = Part.TRAINER) -> io.BytesIO:
    out = io.BytesIO()
    back_up_part(home, part, out)
    out.seek(0)
    return out


def entries(home: SiloHome) -> list[int]:
    with closing(sqlite3.connect(home.ledger)) as ledger:
        return [number for (number,) in ledger.execute("SELECT sequence FROM entries")]


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_both_parts_come_back(home: SiloHome, tmp_path: Path) -> None:
    again = SiloHome(tmp_path / "again")
    for part in Part:
        restore_part(again, part, copied(home, part))
    assert files(again.root) == {
        "trainer/ledger.db",
        "trainer/approvals.jsonl",
        "trainer/tasks/flu/ballot",
        "witness/ledger.json",
    }
    assert entries(again) == [1]
    assert not list(home.trainer.glob(".backup-*")), "nothing is left beside the original"


def test_what_is_committed_is_copied_while_someone_else_writes(
    home: SiloHome, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(home.ledger, isolation_level=None)) as writer:
        writer.execute("INSERT INTO entries VALUES (2)")
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO entries VALUES (3)")
        stream = copied(home)
    again = SiloHome(tmp_path / "again")
    restore_part(again, Part.TRAINER, stream)
    assert entries(again) == [1, 2]


@pytest.mark.parametrize("part", Part)
def test_nothing_is_put_over_what_is_there(home: SiloHome, part: Part) -> None:
    before = entries(home)
    with pytest.raises(ConfigurationError, match="is there already"):
        restore_part(home, part, copied(home, part))
    assert entries(home) == before


def test_a_task_that_is_there_is_not_mixed_with_the_copys(home: SiloHome, tmp_path: Path) -> None:
    again = SiloHome(tmp_path / "again")
    again.tasks.mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="is there already"):
        restore_part(again, Part.TRAINER, copied(home))
    assert not again.ledger.exists(), "the ledger comes last"


def test_one_part_is_not_taken_for_the_other(home: SiloHome, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no backup of a trainer"):
        restore_part(SiloHome(tmp_path / "again"), Part.TRAINER, copied(home, Part.WITNESS))


def test_a_copy_that_was_cut_off_leaves_nothing(home: SiloHome, tmp_path: Path) -> None:
    again, whole = SiloHome(tmp_path / "again"), copied(home).getvalue()
    with pytest.raises(ConfigurationError):
        restore_part(again, Part.TRAINER, io.BytesIO(whole[: len(whole) // 2]))
    assert list(again.trainer.iterdir()) == []


def test_where_there_is_nothing_one_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nothing in"):
        back_up_part(SiloHome(tmp_path / "none"), Part.TRAINER, io.BytesIO())


def test_a_ledger_that_cannot_be_read_is_told_of(home: SiloHome) -> None:
    home.ledger.write_bytes(b"no database" * 1000)
    with pytest.raises(ConfigurationError, match="cannot be copied"):
        copied(home)
    assert not list(home.trainer.glob(".backup-*"))


def test_a_file_that_is_gone_when_it_is_to_be_copied_is_told_of(home: SiloHome) -> None:
    (home.tasks / "replaced").symlink_to("nowhere")
    with pytest.raises(ConfigurationError, match="replaced meanwhile"):
        copied(home)
