"""The task cache's consensuses: each silo sees the classes it knows, and nothing is computed twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from store_scenes import ADMIN, LATER, NOW, join, publish_set, running

from coordinator.api.translation import task_message
from coordinator.consensus import Agreement
from coordinator.round_engine import ClosedBy
from coordinator.rounds import task_cache as board_module
from coordinator.rounds.change_signal import ChangeSignal
from coordinator.rounds.task_cache import TaskCache, view
from coordinator.store import Store
from coordinator.store.executor import StoreExecutor
from coordinator.store.records import ClosedRound, Consensus, TaskRecord
from wire.ballot import ABSTAIN, BallotShape, Encoding, digest, pack, pack_one_hot, unpack
from wire.task.definition import TaskDefinition

pytestmark = pytest.mark.slow

LABELS = ("a", "b", "c")
ROWS = 8
INDEX = BallotShape(ROWS, 3, Encoding.INDEX)
ONE_HOT = BallotShape(ROWS, 3, Encoding.ONE_HOT)
# Rows claimed by: a, b, c, a and b, b and c, all, nobody, a.
CLAIMS = np.array(
    [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 1, 1], [1, 1, 1], [0, 0, 0], [1, 0, 0]]
)
CLAIMED = pack_one_hot(CLAIMS.astype(np.bool_), ONE_HOT)
CLOSED = ClosedRound(
    number=1,
    opened_at=NOW,
    closed_at=LATER,
    closed_by=ClosedBy.EVERYONE,
    digest=digest(CLAIMED),
    size_bytes=len(CLAIMED),
    changed_rows=ROWS,
    abstained_rows=4,
    ballots=2,
    voted=("north", "south"),
    agreement={"north": Agreement(4, 4)},
)


@pytest.mark.parametrize(
    ("known", "labels"),
    [
        ((0, 1, 2), [0, 1, 2, -1, -1, -1, -1, 0]),
        ((0, 1), [0, 1, -1, -1, 1, -1, -1, 0]),
        ((2,), [-1, -1, 2, -1, 2, 2, -1, -1]),
    ],
)
def test_claims_become_one_label_a_row_among_the_classes_known(
    known: tuple[int, ...], labels: list[int]
) -> None:
    header, seen = view(CLOSED, CLAIMED, ONE_HOT, known)
    assert unpack(seen, INDEX).tolist() == labels
    assert (header.digest, header.size_bytes) == (digest(seen), len(seen))
    assert header.abstained_rows == labels.count(ABSTAIN)
    assert (header.number, header.ballots, header.changed_rows) == (1, 2, ROWS)


def test_who_knows_everything_gets_labels_as_they_are_stored() -> None:
    stored = pack(np.array([0, 1, 2, -1, 0, 1, 2, 0]), INDEX)
    assert view(CLOSED, stored, INDEX, (0, 1, 2)) == (CLOSED, stored)
    header, seen = view(CLOSED, stored, INDEX, (0, 2))
    assert unpack(seen, INDEX).tolist() == [0, -1, 2, -1, 0, -1, 2, 0]
    assert header.abstained_rows == 3


class Counting:
    """How often a consensus was read and a view was made."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads = self.views = 0
        read, make = store.tasks.consensus, board_module.view

        def reading(name: str, number: int = 0) -> tuple[ClosedRound, bytes]:
            self.reads += 1
            return read(name, number)

        def making(*arguments: object) -> object:
            self.views += 1
            return make(*arguments)

        monkeypatch.setattr(store.tasks, "consensus", reading)
        monkeypatch.setattr(board_module, "view", making)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(f"sqlite:///{tmp_path / 'coordinator.db'}")
    join(opened, "north", "south")
    publish_set(opened)
    yield opened
    opened.close()


def claimed(store: Store, name: str) -> TaskRecord:
    """A task whose two rounds have published claims."""
    definition = TaskDefinition.model_validate(
        {
            "name": name,
            "public_set": "wards",
            "labels": LABELS,
            "consensus": {"rule": "per_class_threshold"},
            "rounds": {"quorum": 2, "max_rounds": 3},
        }
    )
    store.tasks.create(definition, NOW, ADMIN)
    current = running(store.tasks.start(name, NOW, ADMIN))
    for payload in (CLAIMED, bytes(len(CLAIMED))):
        store.tasks.begin_close(current, ClosedBy.EVERYONE)
        published = Consensus(payload, digest(payload), ROWS, 0, 2)
        current = running(store.tasks.publish(current, published, LATER))
    return store.tasks.get(name)


def test_a_hundred_silos_cost_one_reading_and_one_view_for_each_label_space(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, counting = claimed(store, "sepsis"), Counting(store, monkeypatch)
    spaces = [(0, 1), (0, 1, 2), (2,)]
    in_store = StoreExecutor()

    async def fetch() -> list[bytes]:
        task_cache = TaskCache(store, in_store, ChangeSignal(), task_message)
        every = await asyncio.gather(
            *(task_cache.consensus(task, 1, spaces[number % 3]) for number in range(100))
        )
        return [payload for _, payload in every]

    fetched = asyncio.run(fetch())
    in_store.close()
    assert (counting.reads, counting.views) == (1, 3)
    for number, payload in enumerate(fetched):
        assert payload == view(CLOSED, CLAIMED, ONE_HOT, spaces[number % 3])[1]


def test_another_round_or_task_is_read_anew_and_never_mixed_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = claimed(store, "sepsis"), claimed(store, "stroke")
    counting = Counting(store, monkeypatch)
    in_store = StoreExecutor()

    async def fetch() -> list[tuple[int, int]]:
        task_cache = TaskCache(store, in_store, ChangeSignal(), task_message)
        asked = [(one, 1), (one, 2), (one, 0), (one, 2), (other, 2), (other, 1)]
        found = [await task_cache.consensus(task, number, (0,)) for task, number in asked]
        return [(closed.number, closed.abstained_rows) for closed, _ in found]

    # Who knows class a alone sees it wherever it is claimed: in four rows of round 1.
    assert asyncio.run(fetch()) == [(1, 4), (2, 8), (2, 8), (2, 8), (2, 8), (1, 4)]
    in_store.close()
    # Asked for the latest, the board must look; what it finds is the round it holds.
    assert (counting.reads, counting.views) == (5, 4)


def test_tasks_that_did_not_change_are_not_read_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sepsis, stroke = claimed(store, "sepsis"), claimed(store, "stroke")
    in_store, signal = StoreExecutor(), ChangeSignal()
    read: list[list[str]] = []
    changed_since = store.tasks.changed_since

    def reading(revision: int) -> list[TaskRecord]:
        found = changed_since(revision)
        read.append([task.name for task in found])
        return found

    monkeypatch.setattr(store.tasks, "changed_since", reading)

    async def look() -> list[list[tuple[str, int]]]:
        task_cache, heard = TaskCache(store, in_store, signal, task_message), []

        async def hear(after: int) -> None:
            task_states = await task_cache.task_states("north", after)
            heard.append([(state.definition.name, state.revision) for state in task_states])

        await hear(0)
        store.tasks.pause("sepsis", "lunch", LATER, ADMIN)
        await hear(0)
        signal.fire()
        await hear(0)
        await hear(stroke.revision)
        assert (await task_cache.task("sepsis")).reason == "lunch"
        return heard

    first, unrung, rung, later = asyncio.run(look())
    in_store.close()
    assert first == unrung == [("sepsis", sepsis.revision), ("stroke", stroke.revision)]
    paused = store.tasks.get("sepsis").revision
    assert rung == [("stroke", stroke.revision), ("sepsis", paused)]
    assert later == [("sepsis", paused)]
    assert read == [["sepsis", "stroke"], ["sepsis"]]
