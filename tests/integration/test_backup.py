"""Backups as the documentation makes them: of a coordinator at work, and of a hospital's ledger."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from federation import Federation, Silo, digests, federation
from pages import Block, Reader, read

from silo_agent.agent.audit.entries import Direction, Kind
from silo_agent.trainer.privacy.ledger.ledger import Ledger

sys.path.append(str(Path(__file__).parents[1] / "unit"))
from ledger_scenes import NO_LIMIT, ballot, opened

ROUNDS = 4


def pages(who: str) -> list[Block]:
    """What the page tells one kind of reader."""
    return [block for block in read("backup.md")[1] if block.who == who]


def votes(silo: Silo) -> dict[int, set[str]]:
    """The digests of all ballots that left a silo, by round."""
    left: dict[int, set[str]] = {}
    for one in silo.audit_entries():
        if (one.direction, one.kind) == (Direction.OUT, Kind.BALLOT):
            left.setdefault(one.round, set()).add(one.digest)
    return left


def paid(silo: Silo) -> list[int]:
    """The rounds on a silo's ledger."""
    ledger = Ledger(silo.home.ledger, silo.home.ledger_witness, lambda: pytest.fail("no clock"))
    return sorted(entry.release.round for entry in ledger.entries())


@dataclass(frozen=True)
class Restored:
    """A federation whose coordinator was put back to the middle of a task, and that has ended the task again."""

    live: Federation
    admin: Reader
    silos: tuple[Silo, Silo]
    before: list[str]
    """Digests of the consensuses in the life that was forgotten, and in this one."""
    after: list[str]


@contextmanager
def restored(tmp_path: Path, **definition: Any) -> Iterator[Restored]:
    """Two silos, a backup while the first of four rounds waits for one of them; as the page says it."""
    copy, restore, serve = pages("admin")
    with federation(tmp_path) as live:
        north, south = live.join("north"), live.join("south")
        live.run(north, south)
        south.close_gate()
        live.start("trial", rounds={"max_rounds": ROUNDS, "quorum": 2}, **definition)
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
        assert live.ballots("trial") == cast, "each once, and the same ones"
        yield Restored(live, admin, (north, south), before, after)


def test_a_coordinator_restored_from_the_middle_of_a_task_ends_it_as_it_had(tmp_path: Path) -> None:
    with restored(tmp_path) as again:
        assert again.after == again.before
        for silo in again.silos:
            assert not silo.agent.ended()
            assert all(len(found) == 1 for found in votes(silo).values()), "never another ballot"
            assert paid(silo) == [1, 2, 3, 4], "and none is paid for twice"
        south = again.silos[1]
        forgotten = [event["round"] for event in south.agent.events("ballot_lost_by_coordinator")]
        assert forgotten[0] == 1, "the round that was open in the backup"
        again.admin.paste("consilium audit verify")


def test_noise_that_a_restored_coordinator_draws_again_is_on_its_books(tmp_path: Path) -> None:
    with restored(tmp_path, privacy={"party_gamma": 0.001}) as again:
        assert again.after != again.before, "the noise is another"
        page = json.loads(again.admin.paste("consilium audit privacy --delta 0 --json"))
        drawn = {entry["round"]: entry["draws"] for entry in page["entries"]}
        assert drawn == dict.fromkeys(range(1, ROUNDS + 1), 2)
        assert page["total"]["consensuses"] == 2 * ROUNDS


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
