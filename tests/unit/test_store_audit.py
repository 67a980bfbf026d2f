"""The coordinator's audit chain in a real database file: whatever SQL does to it is found and named."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_scenes import LATER, accept, ballot, open_task

from coordinator.api.translation import audit_message
from coordinator.cli.audit import link_of
from coordinator.store import Store
from coordinator.store.actors import LocalActor
from wire.runtime.chain import Broken, Damage, Head, first_break, head_of

pytestmark = pytest.mark.slow

ENTRIES = 9
"""What `open_task` and two ballots leave: two silos invited and joined, a set, a task made and started."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "coordinator.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = Store(f"sqlite:///{path}")
    open_task(store, "north", "south")
    for silo in ("north", "south"):
        accept(store, ballot(silo), b"\x01\x02")
    yield store
    store.close()


def sql(path: Path, *statements: str) -> None:
    database = sqlite3.connect(path)
    with database:
        for statement in statements:
            database.execute(statement)
    database.close()


def verified(store: Store, *remembered: Head) -> Broken | None:
    head = store.audit.head()
    return first_break(store.audit.page(), (head, *remembered), at_most=head.sequence)


class TestTheRecord:
    def test_is_whole_and_ends_at_its_head(self, store: Store) -> None:
        links = store.audit.page()
        assert len(links) == ENTRIES
        assert store.audit.head() == head_of(links)
        assert verified(store) is None

    def test_names_who_did_what_to_which_thing_and_when(self, store: Store) -> None:
        entry = store.audit.page()[-1].entry
        assert entry == {
            "at": LATER.isoformat(timespec="microseconds"),
            "actor": "silo/south",
            "act": "ballot_accepted",
            "subject": "task/sepsis",
            "details": {"round": 1, "digest": ballot("south").digest, "bytes": 2},
        }

    def test_has_nothing_of_an_act_that_failed(self, store: Store) -> None:
        conflict = ballot("north", b"\x03\x04")
        with pytest.raises(Exception, match="different ballot"):
            accept(store, conflict, b"\x03\x04")
        assert len(store.audit.page()) == ENTRIES
        assert verified(store) is None

    def test_has_one_entry_for_a_ballot_cast_twice(self, store: Store) -> None:
        assert accept(store, ballot("north"), b"\x01\x02").already_held
        assert len(store.audit.page()) == ENTRIES

    def test_has_neither_labels_nor_bits(self, store: Store) -> None:
        text = json.dumps([dict(link.entry) for link in store.audit.page()])
        assert '"yes"' not in text
        assert '"no"' not in text

    def test_is_read_page_by_page(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("coordinator.store.audit._PAGE", 4)
        pages, after = [], 0
        while page := store.audit.page(after):
            pages.append(len(page))
            after = page[-1].sequence
        assert pages == [4, 4, 1]

    def test_passes_the_wire_unchanged(self, store: Store) -> None:
        for link in store.audit.page():
            assert link_of(audit_message(link)) == link


COPY = "INSERT INTO audit SELECT {}, at, actor, act, subject, details, previous, hash FROM audit WHERE sequence = {}"
SWAP = (
    "UPDATE audit SET sequence = -1 WHERE sequence = 3",
    "UPDATE audit SET sequence = 3 WHERE sequence = 4",
    "UPDATE audit SET sequence = 4 WHERE sequence = -1",
)
SHIFT_UP = (
    "UPDATE audit SET sequence = -sequence WHERE sequence > 3",
    "UPDATE audit SET sequence = -sequence - 1 WHERE sequence < 0",
)
SHIFT_DOWN = (
    "UPDATE audit SET sequence = -sequence WHERE sequence > 3",
    "UPDATE audit SET sequence = -sequence + 1 WHERE sequence < 0",
)
EDITS = [
    "actor = 'admin/mallory'",
    "act = 'nothing_of_the_kind'",
    "subject = 'silo/west'",
    "at = at + 1",
    "at = 'yesterday'",
    "at = 9e18",
    """details = '{"token":"other"}'""",
    "details = 'not json'",
    "details = 'null'",
    "previous = 'x'",
    "hash = 'x'",
    "hash = X'00ff'",
]


class TestTampering:
    @pytest.mark.parametrize("edit", EDITS)
    def test_an_edit_is_found_whatever_was_edited(
        self, store: Store, path: Path, edit: str
    ) -> None:
        sql(path, f"UPDATE audit SET {edit} WHERE sequence = 3")
        broken = verified(store)
        assert broken is not None
        assert (broken.sequence, broken.damage) == (3, Damage.EDITED)
        assert audit_message(store.audit.page()[2]).sequence == 3, "an admin can still read it"

    @pytest.mark.parametrize(
        ("statements", "expected"),
        [
            (["DELETE FROM audit WHERE sequence = 3"], (3, Damage.REMOVED)),
            (["DELETE FROM audit WHERE sequence = 3", *SHIFT_UP], (3, Damage.REMOVED)),
            (["DELETE FROM audit WHERE sequence < 3"], (1, Damage.REMOVED)),
            (["DELETE FROM audit WHERE sequence > 7"], (8, Damage.CUT_SHORT)),
            (["DELETE FROM audit"], (1, Damage.CUT_SHORT)),
            (SWAP, (3, Damage.MOVED)),
            ([*SHIFT_DOWN, COPY.format(4, 2)], (4, Damage.INSERTED)),
            ([COPY.format(ENTRIES + 1, ENTRIES)], (ENTRIES + 1, Damage.INSERTED)),
            (["UPDATE audit SET sequence = 'four' WHERE sequence = 4"], (4, Damage.REMOVED)),
        ],
    )
    def test_a_deletion_reordering_or_insertion_is_named(
        self, store: Store, path: Path, statements: list[str], expected: tuple[int, Damage]
    ) -> None:
        sql(path, *statements)
        broken = verified(store)
        assert broken is not None
        assert (broken.sequence, broken.damage) == expected

    def test_an_end_cut_off_together_with_the_head_is_found_by_whoever_remembers_it(
        self, store: Store, path: Path
    ) -> None:
        remembered = store.audit.head()
        sql(
            path,
            "DELETE FROM audit WHERE sequence > 7",
            "UPDATE audit_head SET sequence = 7, hash = (SELECT hash FROM audit WHERE sequence = 7)",
        )
        assert verified(store) is None, "the record alone cannot know"
        broken = verified(store, remembered)
        assert broken is not None
        assert (broken.sequence, broken.damage) == (8, Damage.CUT_SHORT)

    def test_an_act_behind_the_tampering_does_not_heal_it(self, store: Store, path: Path) -> None:
        sql(path, "DELETE FROM audit WHERE sequence > 7")
        store.tasks.pause("sepsis", "Paused.", LATER, LocalActor("admin/chief"))
        broken = verified(store)
        assert broken is not None
        assert (broken.sequence, broken.damage) == (8, Damage.REMOVED)
