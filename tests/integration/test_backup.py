"""Backups as the documentation makes them: of a coordinator at work, and of a hospital's ledger."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from federation import Silo, digests, federation
from pages import Block, Reader, read

from silo_agent.privacy.ledger import Ledger
from silo_agent.traffic import Direction, Kind

sys.path.append(str(Path(__file__).parents[1] / "unit"))
from ledger_scenes import NO_LIMIT, ballot, opened

ROUNDS = 4


def pages(who: str) -> list[Block]:
    """What the page tells one kind of reader."""
    return [block for block in read("backup.md")[1] if block.who == who]


def votes(silo: Silo) -> dict[int, set[str]]:
    """The digests of all ballots that left a silo, by round."""
    left: dict[int, set[str]] = {}
    for one in silo.movements():
        if (one.direction, one.kind) == (Direction.OUT, Kind.BALLOT):
            left.setdefault(one.round, set()).add(one.digest)
    return left


def paid(silo: Silo) -> list[int]:
    """The rounds on a silo's ledger."""
    ledger = Ledger(silo.home.ledger, silo.home.ledger_witness, lambda: pytest.fail("no clock"))
    return sorted(entry.release.round for entry in ledger.entries())


def test_a_coordinator_restored_from_the_middle_of_a_task_ends_it_as_it_had(tmp_path: Path) -> None:
    copy, restore, serve = pages("admin")
    with federation(tmp_path) as live:
        north, south = live.join("north"), live.join("south")
        live.run(north, south)
        south.close_gate()
        live.start("trial", rounds={"max_rounds": ROUNDS, "quorum": 2})
        live.until_voted("trial", "north")
        backup = tmp_path / "backup"
        admin = Reader("", CONSILIUM_HOME=str(live.home), BACKUP=str(backup))
        admin.paste(copy.text)

        # The life that will be forgotten: the task comes to its end.
        south.open_gate()
        before = digests(live.until_finished("trial"))
        cast = live.ballots("trial")
        for silo in (north, south):
            silo.agent.until("task_finished")
        elsewhere = tmp_path / "elsewhere"
        admin = Reader("", CONSILIUM_HOME=str(elsewhere), BACKUP=str(backup))
        admin.paste(restore.text)
        live.coordinator.kill()
        live.home.rename(tmp_path / "lost")

        live.home = elsewhere
        assert list(live.ballots("trial")) == [(1, "north")], "it is the middle of the task"
        live.coordinator = admin.service(serve, tmp_path / "restored.log")
        live.serve()

        after = digests(live.until_finished("trial"))
        assert after == before
        assert live.ballots("trial") == cast, "each once, and the same ones"
        for silo in (north, south):
            assert not silo.agent.ended()
            assert all(len(found) == 1 for found in votes(silo).values()), "never another ballot"
            assert paid(silo) == [1, 2, 3, 4], "and none is paid for twice"
        forgotten = [event["round"] for event in south.agent.events("ballot_forgotten")]
        assert forgotten[0] == 1, "the round that was open in the backup"
        admin.paste("consilium audit verify")


def test_an_old_ledger_is_refused_until_someone_writes_it_off(tmp_path: Path) -> None:
    verify, write_off = (block.text for block in pages("hospital"))
    (tmp_path / "silo.yaml").write_text(
        "data: {path: data.csv, label: state}\nmodel: decision_tree\n"
        "privacy: {mechanism: private_labeller, dataset: private}\n"
    )
    officer = Reader("", CONSILIUM_SILO_HOME=str(tmp_path))
    opened(tmp_path).spend(ballot(1), NO_LIMIT)
    shutil.copyfile(tmp_path / "trainer" / "ledger.db", tmp_path / "copy.db")
    for number in (2, 3):
        opened(tmp_path).spend(ballot(number), NO_LIMIT)
    assert "3 entries" in officer.paste(verify)

    shutil.copyfile(tmp_path / "copy.db", tmp_path / "trainer" / "ledger.db")
    with pytest.raises(AssertionError, match="may lack what was spent"):
        officer.paste(verify)
    assert "for 2 ballots" in officer.paste(write_off)
    assert "2 entries" in officer.paste(verify)
    report = json.loads(officer.paste("consilium agent ledger --json"))
    assert "Disk lost on 3 May" in json.dumps(report)
