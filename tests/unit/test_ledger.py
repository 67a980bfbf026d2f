"""The privacy ledger: nothing leaves unpaid, nothing is paid twice, nothing is forgotten unseen."""

from __future__ import annotations

import errno
import json
import math
import multiprocessing
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger_scenes import NO_LIMIT, TASK, at_most, ballot, opened, race, tampered
from patience import PATIENCE
from pydantic import ValidationError

from silo_agent.shared.home import SiloHome
from silo_agent.trainer.privacy.budget import Budget, added_up, cost, shown
from silo_agent.trainer.privacy.ledger import file as ledger_file
from silo_agent.trainer.privacy.ledger.file import LedgerFile, LedgerTransaction
from silo_agent.trainer.privacy.ledger.index import LedgerIndex
from silo_agent.trainer.privacy.ledger.ledger import Ledger, Overspent
from silo_agent.trainer.privacy.ledger.release import Kind, Release
from silo_agent.trainer.privacy.ledger.witness import Witness
from wire.errors import (
    BUDGET_EXCEEDED,
    DISK_FULL,
    LEDGER_BROKEN,
    LEDGER_ROLLED_BACK,
    LEDGER_UNUSABLE,
    Fault,
    Refusal,
)
from wire.privacy.declaration import Unit
from wire.privacy.events import (
    Event,
    Free,
    Gaussian,
    Laplace,
    Pure,
    RandomizedResponse,
    SampledGaussian,
    Unprotected,
)
from wire.runtime.chain import Head, Link, append, link_hash

pytestmark = pytest.mark.slow


def refused(act: Callable[[], object]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        act()
    return caught.value


def filled(home: Path, number: int) -> Ledger:
    ledger = opened(home)
    for one in range(1, number + 1):
        ledger.spend(ballot(one), NO_LIMIT)
    return ledger


# -- spending ---------------------------------------------------------------------------------------


def test_what_was_spent_is_there_for_everyone_who_opens_the_ledger(tmp_path: Path) -> None:
    release = ballot(
        1, parameters={"scale": 40.0, "rows": (1, 2)}, made_from=("a", "b"), pays_for=("b",)
    )
    opened(tmp_path).spend(ballot(9, made_from=("a",), pays_for=("a",)), NO_LIMIT)
    link = opened(tmp_path).spend(release, NO_LIMIT)
    _, entry = opened(tmp_path).entries()
    assert entry.link == link
    assert entry.release == release.model_copy(update={"at": "2026-03-01T12:00:00.000+00:00"})
    assert "epsilon_spent" not in json.dumps(link.entry)
    assert stat.S_IMODE(SiloHome(tmp_path).ledger.stat().st_mode) == 0o600


def test_looking_creates_nothing(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    assert ledger.releases() == ()
    assert ledger.spent("private", 1e-5) == 0
    assert ledger.verify().sequence == 0
    assert list(tmp_path.iterdir()) == []


def test_the_same_ballot_is_paid_once_however_often_it_is_handed_over(tmp_path: Path) -> None:
    first = opened(tmp_path).spend(ballot(1), at_most(task=0.25))
    again = opened(tmp_path).spend(ballot(1), at_most(task=0.25))
    assert again == first
    assert opened(tmp_path).spent("private", 0) == 0.25


def test_another_ballot_of_the_same_round_is_paid_for(tmp_path: Path) -> None:
    ledger = filled(tmp_path, 1)
    ledger.spend(ballot(1, ballot_digest="ff" * 32), NO_LIMIT)
    assert ledger.spent("private", 0) == 0.5


def test_a_free_entry_does_not_cover_the_same_bits_made_from_private_data(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.spend(ballot(1, kind=Kind.ABSTENTION, events=()), NO_LIMIT)
    ledger.spend(ballot(1), NO_LIMIT)
    assert ledger.spent("private", 0) == 0.25
    ledger.spend(ballot(1, kind=Kind.ABSTENTION, events=()), NO_LIMIT)
    assert len(ledger.releases()) == 2


def test_a_ballot_is_paid_only_for_its_own_round_task_and_bits(tmp_path: Path) -> None:
    ledger = filled(tmp_path, 1)
    digest = ballot(1).ballot_digest
    assert ledger.paid(TASK, 1, digest)
    assert not ledger.paid(TASK, 2, digest)
    assert not ledger.paid("bb" * 32, 1, digest)
    assert not ledger.paid(TASK, 1, "ff" * 32)


def test_tasks_and_data_sets_are_kept_apart_and_added_up(tmp_path: Path) -> None:
    ledger = filled(tmp_path, 2)
    ledger.spend(ballot(1, task_digest="bb" * 32), NO_LIMIT)
    ledger.spend(ballot(1, dataset="other"), NO_LIMIT)
    assert ledger.spent("private", 0, TASK) == 0.5
    assert ledger.spent("private", 0, "bb" * 32) == 0.25
    assert ledger.spent("private", 0) == 0.75
    assert ledger.spent("other", 0) == 0.25
    assert len(ledger.releases(dataset="private", task_digest=TASK)) == 2


# -- what is free -----------------------------------------------------------------------------------


def test_a_repetition_is_free_only_if_its_ballot_was_paid_for(tmp_path: Path) -> None:
    ledger = filled(tmp_path, 1)
    repeated: dict[str, Any] = {"kind": Kind.REPETITION, "events": (Free(),)}
    ledger.spend(ballot(2, ballot_digest=ballot(1).ballot_digest, **repeated), at_most(task=0.25))
    assert ledger.spent("private", 0) == 0.25
    with pytest.raises(ValueError, match="repeats no ballot"):
        ledger.spend(ballot(3, **repeated), NO_LIMIT)
    with pytest.raises(ValueError, match="repeats no ballot"):
        ledger.spend(
            ballot(2, task_digest="bb" * 32, ballot_digest=ballot(1).ballot_digest, **repeated),
            NO_LIMIT,
        )
    assert len(ledger.releases()) == 2


def test_a_free_ballot_needs_a_model_that_was_paid_for(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    free: dict[str, Any] = {"events": (), "made_from": ("head",)}
    with pytest.raises(ValueError, match="no model that was paid for"):
        ledger.spend(ballot(1, events=()), NO_LIMIT)
    with pytest.raises(ValueError, match="neither its events nor earlier ones"):
        ledger.spend(ballot(1, **free), NO_LIMIT)
    assert not ledger.paid_basis("head")
    ledger.spend(ballot(1, made_from=("head",), pays_for=("head",)), NO_LIMIT)
    ledger.spend(ballot(2, **free), NO_LIMIT)
    assert ledger.paid_basis("head")
    assert ledger.spent("private", 0) == 0.25


def test_what_a_ballot_pays_anew_does_not_pay_for_a_model_it_was_made_from(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    with pytest.raises(ValueError, match="neither its events nor earlier ones"):
        ledger.spend(ballot(1, made_from=("head",)), NO_LIMIT)
    assert ledger.releases() == ()


@pytest.mark.parametrize(
    "claimed",
    [{"pays_for": ("head",)}, {"made_from": ("head",), "pays_for": ("head",), "events": ()}],
    ids=["not made from it", "nothing paid"],
)
def test_a_release_pays_only_for_what_it_was_made_from(claimed: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="pay for models"):
        ballot(1, **claimed)


def test_entries_of_the_version_that_knew_one_model_are_read(tmp_path: Path) -> None:
    """As they stand in ledgers since issue 4: one `basis`, paid for by the entry that costs something."""
    paying = ballot(1).model_dump(mode="json", exclude={"made_from", "pays_for"})
    free = {**paying, "round": 2, "ballot_digest": "ff" * 32, "events": [{"kind": "free"}]}
    links = []
    for entry in ({**paying, "basis": "head"}, {**free, "basis": "head"}, {**paying, "basis": ""}):
        links.append(append(_end_of(links), entry))
    index = LedgerIndex(links)
    assert [entry.release.made_from for entry in index.entries] == [("head",), ("head",), ()]
    assert [entry.release.pays_for for entry in index.entries] == [("head",), (), ()]
    assert index.paid_basis("head")


def _end_of(links: list[Link]) -> Head:
    return Head(links[-1].sequence, links[-1].hash) if links else Head()


@pytest.mark.parametrize("kind", [Kind.ABSTENTION, Kind.REPETITION])
def test_what_must_be_free_cannot_cost_anything(kind: Kind) -> None:
    with pytest.raises(ValidationError, match="must be free"):
        ballot(1, kind=kind)


@pytest.mark.parametrize("sensitivity", ["empirical", "stability_bound"])
def test_an_estimate_cannot_pass_for_a_guarantee(sensitivity: str) -> None:
    with pytest.raises(ValidationError, match="makes it an estimate"):
        ballot(1, sensitivity=sensitivity)
    assert ballot(1, sensitivity=sensitivity, estimate=True).estimate


# -- budgets ----------------------------------------------------------------------------------------


def test_at_the_limit_nothing_is_written_and_the_reason_is_said(tmp_path: Path) -> None:
    ledger = filled(tmp_path, 3)
    asked = ledger.would_exceed("private", TASK, (Pure(epsilon=0.26),), at_most(task=1))
    assert asked is not None
    refusal = refused(
        lambda: ledger.spend(ballot(4, events=(Pure(epsilon=0.26),)), at_most(task=1))
    )
    assert isinstance(refusal, Overspent)
    assert refusal.is_a(BUDGET_EXCEEDED)
    assert refusal.exceeded == asked
    assert asked.sentence == (
        "the task's budget ε = 1 at δ = 0 would be exceeded: spent 0.75, this ballot would make it 1.01"
    )
    assert len(opened(tmp_path).releases()) == 3
    ledger.spend(ballot(4), at_most(task=1))


def test_the_budget_of_the_data_set_counts_all_tasks(tmp_path: Path) -> None:
    ledger = filled(tmp_path, 3)
    events = (Pure(epsilon=0.5),)
    assert ledger.would_exceed("private", "bb" * 32, events, at_most(task=0.5)) is None
    over = ledger.would_exceed("private", "bb" * 32, events, at_most(task=0.5, lifetime=1))
    assert over is not None
    assert over.sentence.startswith("the lifetime budget ε = 1 at δ = 0 would be exceeded")
    assert ledger.would_exceed("other", "bb" * 32, events, at_most(lifetime=1)) is None


def test_what_is_free_fits_a_budget_that_is_gone(tmp_path: Path) -> None:
    ledger = filled(tmp_path, 3)
    assert ledger.would_exceed("private", TASK, (Free(),), at_most(task=0.1)) is None
    assert ledger.would_exceed("private", TASK, (), at_most(task=0.1)) is None


def test_after_a_release_without_noise_no_budget_can_be_kept(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    over = ledger.would_exceed("private", TASK, (Unprotected(),), at_most(lifetime=8))
    assert over is not None
    assert over.would_be == math.inf
    ledger.spend(ballot(1, events=(Unprotected(),), mechanism="none"), NO_LIMIT)
    assert ledger.spent("private", 1e-5) == math.inf
    over = ledger.would_exceed("private", "bb" * 32, (Pure(epsilon=0.1),), at_most(lifetime=8))
    assert over is not None
    assert "without noise before" in over.sentence


def test_a_budget_per_patient_cannot_be_kept_behind_releases_per_row(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    per_row = Budget(None, 8.0, 0, Unit.ROW)
    ledger.spend(ballot(1, unit="row"), per_row)
    over = ledger.would_exceed("private", TASK, (Pure(epsilon=0.1),), at_most(lifetime=8))
    assert over is not None
    assert "1 earlier release protected single rows only" in over.sentence
    # The other way round a patient's protection is a row's, too.
    ledger.spend(ballot(1, dataset="other"), at_most(lifetime=8))
    assert ledger.would_exceed("other", TASK, (Pure(epsilon=0.1),), per_row) is None
    with pytest.raises(ValueError, match="per patient cannot pay for a release per row"):
        ledger.spend(ballot(2, unit="row"), at_most(lifetime=8))


def test_noise_calibrated_to_the_whole_budget_fits_it_to_the_last_ballot(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    # As a logarithm of rounded odds would give it.
    third = (1 + 1e-12) / 3
    for number in range(1, 4):
        ledger.spend(ballot(number, events=(Pure(epsilon=third),)), at_most(task=1))
    assert ledger.spent("private", 0) == pytest.approx(1)


@pytest.mark.parametrize(("epsilon", "text"), [(0.93, "0.93"), (1.00000002, "1.0001"), (0, "0")])
def test_a_person_is_never_shown_less_than_was_spent(epsilon: float, text: str) -> None:
    assert shown(epsilon) == text


EVENTS = st.one_of(
    st.just(Free()),
    st.builds(Pure, epsilon=st.floats(0.01, 0.5), count=st.integers(1, 4)),
    st.builds(
        Gaussian,
        sensitivity=st.just(1.0),
        scale=st.sampled_from([5.0, 20.0]),
        count=st.integers(1, 4),
    ),
    st.builds(Laplace, sensitivity=st.just(1.0), scale=st.just(20.0), count=st.integers(1, 9)),
    st.builds(
        RandomizedResponse,
        buckets=st.just(3),
        epsilon=st.sampled_from([0.01, 0.1]),
        count=st.integers(1, 40),
    ),
    st.just(SampledGaussian(rate=0.1, clip=1, scale=4, steps=5)),
)


@given(st.lists(EVENTS, max_size=4), EVENTS, st.floats(0.05, 3))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_spending_grows_and_is_refused_exactly_when_asking_says_so(
    tmp_path_factory: pytest.TempPathFactory, before: list[Event], new: Event, limit: float
) -> None:
    ledger = opened(tmp_path_factory.mktemp("silo"))
    for number, event in enumerate(before, start=1):
        ledger.spend(ballot(number, events=(event, Pure(epsilon=0.01))), NO_LIMIT)
    spent = ledger.spent("private", 1e-5)
    budget = at_most(lifetime=limit, delta=1e-5)
    fresh = ballot(9, events=(new, Pure(epsilon=0.01)))
    over = ledger.would_exceed("private", TASK, fresh.events, budget)
    if over is None:
        ledger.spend(fresh, budget)
        assert spent < ledger.spent("private", 1e-5) <= limit * (1 + 1e-9)
    else:
        assert over.would_be > limit
        assert refused(lambda: ledger.spend(fresh, budget)).is_a(BUDGET_EXCEEDED)
        assert ledger.spent("private", 1e-5) == spent


def test_events_added_up_cost_what_they_cost_one_by_one() -> None:
    from wire.privacy.accounting import epsilon

    events: list[Event] = [
        *[Gaussian(sensitivity=2.0, scale=30.0, count=3)] * 4,
        Gaussian(sensitivity=2.0, scale=30.0),
        *[RandomizedResponse(buckets=4, epsilon=0.02, count=50)] * 3,
        *[SampledGaussian(rate=0.05, clip=1, scale=3, steps=10)] * 2,
        Free(),
    ]
    assert len(added_up(events)) == 3
    assert cost(added_up(events), 1e-5) == pytest.approx(epsilon(events, 1e-5), rel=1e-6)


# -- several at once, and deaths -----------------------------------------------------------------------


def test_two_processes_cannot_both_take_what_is_left(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    spawn = multiprocessing.get_context("spawn")
    start, results = spawn.Barrier(2), spawn.Queue()
    racers = [spawn.Process(target=race, args=(tmp_path, n, start, results)) for n in (11, 12)]
    for racer in racers:
        racer.start()
    assert sorted(results.get(timeout=PATIENCE) for _ in racers) == ["overspent", "paid"]
    for racer in racers:
        racer.join()
    assert opened(tmp_path).spent("private", 0) == 1
    opened(tmp_path).verify()


def test_a_writer_waits_for_another(tmp_path: Path) -> None:
    ledger = filled(tmp_path, 1)
    reader = opened(tmp_path)
    with LedgerFile(SiloHome(tmp_path).ledger).writing() as transaction:
        transaction.write(append(ledger.verify(), ballot(2, at="now").model_dump(mode="json")))
        # What is not committed is not there.
        assert len(reader.releases()) == 1
    assert len(reader.releases()) == 2
    assert len(ledger.releases()) == 2


KILLED = """
import os, signal, sys
from pathlib import Path
from ledger_scenes import NO_LIMIT, ballot, opened
from silo_agent.trainer.privacy.ledger import ledger
from silo_agent.trainer.privacy.ledger import file as ledger_file

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

place, home = sys.argv[1], Path(sys.argv[2])
if place == "before the commit":
    write = ledger_file.LedgerTransaction.write
    ledger_file.LedgerTransaction.write = lambda transaction, link: (write(transaction, link), die())
else:
    ledger.Ledger._update_witness = die
opened(home).spend(ballot(2), NO_LIMIT)
"""


@pytest.mark.parametrize(
    ("place", "there"), [("before the commit", False), ("before the witness", True)]
)
def test_killed_in_the_middle_a_release_is_there_or_not(
    tmp_path: Path, place: str, there: bool
) -> None:
    filled(tmp_path, 1)
    environment = os.environ | {"PYTHONPATH": f"tests/unit{os.pathsep}."}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, place, tmp_path], env=environment, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    ledger = opened(tmp_path)
    assert ledger.paid(TASK, 2, ballot(2).ballot_digest) is there
    # The trainer starts again, has the ballot it kept and hands it over.
    ledger.spend(ballot(2), at_most(task=0.5))
    assert ledger.spent("private", 0) == 0.5
    seen = Witness(SiloHome(tmp_path).ledger_witness).read()
    assert seen is not None
    assert seen.head == ledger.verify()


def test_a_full_disk_refuses_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = filled(tmp_path, 1)
    connect = sqlite3.connect

    def cramped(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.execute("PRAGMA max_page_count = 1")  # never below what is there
        return connection

    large = ballot(2, reason="x" * 10_000)
    with monkeypatch.context() as patched:
        patched.setattr(ledger_file.sqlite3, "connect", cramped)
        refusal = refused(lambda: ledger.spend(large, NO_LIMIT))
    assert refusal.is_a(DISK_FULL)
    assert str(tmp_path) in refusal.sentence
    assert len(opened(tmp_path).releases()) == 1
    ledger.spend(large, NO_LIMIT)
    assert len(ledger.releases()) == 2


def test_a_release_the_witness_has_no_room_for_is_refused_and_not_paid_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = filled(tmp_path, 1)

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert refused(lambda: ledger.spend(ballot(2), NO_LIMIT)).is_a(DISK_FULL)
    ledger.spend(ballot(2), at_most(task=0.5))
    assert opened(tmp_path).spent("private", 0) == 0.5
    seen = Witness(SiloHome(tmp_path).ledger_witness).read()
    assert seen is not None
    assert seen.sequence == 2


def test_a_commit_survives_a_power_cut_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels: list[tuple[str, int]] = []
    write = LedgerTransaction.write

    def watched(transaction: LedgerTransaction, link: Any) -> None:
        write(transaction, link)
        connection = transaction._connection
        mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
        levels.append((mode, connection.execute("PRAGMA synchronous").fetchone()[0]))

    monkeypatch.setattr(LedgerTransaction, "write", watched)
    filled(tmp_path, 1)
    # In this mode 2 (FULL) may come undone: the journal's removal is synced with 3 (EXTRA) only.
    assert levels == [("delete", 3)]


def test_a_ledger_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    home = SiloHome(tmp_path)
    home.ledger.mkdir(parents=True)
    assert refused(opened(tmp_path).releases).is_a(LEDGER_UNUSABLE)
    home.ledger.rmdir()
    home.ledger_witness.parent.write_text("not a folder")
    refusal = refused(lambda: opened(tmp_path).spend(ballot(1), NO_LIMIT))
    assert refusal.is_a(LEDGER_UNUSABLE)
    assert str(home.ledger_witness) in refusal.sentence


# -- integrity ----------------------------------------------------------------------------------------


def edited(connection: sqlite3.Connection) -> None:
    connection.execute(
        "UPDATE entries SET entry = replace(entry, '0.25', '0.01') WHERE sequence = 2"
    )


def removed(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM entries WHERE sequence = 2")


def removed_and_numbered_anew(connection: sqlite3.Connection) -> None:
    removed(connection)
    connection.execute("UPDATE entries SET sequence = sequence - 1 WHERE sequence > 2")


def reordered(connection: sqlite3.Connection) -> None:
    for old, new in ((2, 99), (3, 2), (99, 3)):
        connection.execute("UPDATE entries SET sequence = ? WHERE sequence = ?", (new, old))


def exchanged_with_hashes_to_fit(connection: sqlite3.Connection) -> None:
    text, previous = connection.execute(
        "SELECT entry, previous FROM entries WHERE sequence = 4"
    ).fetchone()
    entry = {**json.loads(text), "events": []}
    row = (json.dumps(entry), link_hash(previous, entry))
    connection.execute("UPDATE entries SET entry = ?, hash = ? WHERE sequence = 4", row)


def made_unreadable(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE entries SET entry = '[' WHERE sequence = 2")


def cut_short(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM entries WHERE sequence = 4")


def emptied(connection: sqlite3.Connection) -> None:
    connection.execute("DROP TABLE entries")


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (edited, LEDGER_BROKEN),
        (removed, LEDGER_BROKEN),
        (removed_and_numbered_anew, LEDGER_BROKEN),
        (reordered, LEDGER_BROKEN),
        (exchanged_with_hashes_to_fit, LEDGER_BROKEN),
        (made_unreadable, LEDGER_BROKEN),
        (cut_short, LEDGER_ROLLED_BACK),
        (emptied, LEDGER_ROLLED_BACK),
    ],
)
def test_tampering_is_noticed_and_nothing_is_released(
    tmp_path: Path, damage: Callable[[sqlite3.Connection], None], fault: Fault
) -> None:
    before = filled(tmp_path, 4)
    tampered(tmp_path, damage)
    for act in (
        lambda ledger: ledger.verify(),
        lambda ledger: ledger.spent("private", 0),
        lambda ledger: ledger.spend(ballot(5), NO_LIMIT),
    ):
        refusal = refused(lambda act=act: act(opened(tmp_path)))
        assert refusal.is_a(fault), refusal
    # Whoever had read it before trusts what it has read, and notices when it looks anew.
    assert refused(before.verify).is_a(fault)


def test_a_file_that_is_no_database_is_a_broken_ledger(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    path = SiloHome(tmp_path).ledger
    path.write_bytes(b"x" * path.stat().st_size)
    assert refused(opened(tmp_path).verify).is_a(LEDGER_BROKEN)


@pytest.mark.parametrize("statement", ["UPDATE entries SET hash = ''", "DELETE FROM entries"])
def test_the_file_itself_refuses_to_be_changed(tmp_path: Path, statement: str) -> None:
    filled(tmp_path, 1)
    with (
        closing(sqlite3.connect(SiloHome(tmp_path).ledger)) as connection,
        pytest.raises(sqlite3.IntegrityError, match="append-only"),
    ):
        connection.execute(statement)


def test_an_old_copy_put_back_is_noticed_by_the_witness(tmp_path: Path) -> None:
    running, path = filled(tmp_path, 2), SiloHome(tmp_path).ledger
    shutil.copy(path, tmp_path / "backup")
    running.spend(ballot(3), NO_LIMIT)
    shutil.copy(tmp_path / "backup", path)
    for ledger in (running, opened(tmp_path)):
        refusal = refused(lambda ledger=ledger: ledger.spend(ballot(4), NO_LIMIT))
        assert refusal.is_a(LEDGER_ROLLED_BACK)
        assert "write-off" in refusal.hint
    path.unlink()
    refusal = refused(lambda: opened(tmp_path).spend(ballot(4), NO_LIMIT))
    assert refusal.is_a(LEDGER_ROLLED_BACK)
    assert "missing" in refusal.sentence
    assert not path.exists()


def test_a_running_process_notices_even_without_the_witness(tmp_path: Path) -> None:
    running, home = filled(tmp_path, 2), SiloHome(tmp_path)
    shutil.copytree(tmp_path, tmp_path / "backup")
    running.spend(ballot(3), NO_LIMIT)
    shutil.copy(tmp_path / "backup/trainer/ledger.db", home.ledger)
    shutil.copy(tmp_path / "backup/witness/ledger.json", home.ledger_witness)
    assert refused(lambda: running.spend(ballot(4), NO_LIMIT)).is_a(LEDGER_ROLLED_BACK)


def test_ledger_and_witness_put_back_together_are_noticed_by_what_others_know(
    tmp_path: Path,
) -> None:
    ledger = filled(tmp_path, 2)
    ledger.spend(ballot(3, kind=Kind.ABSTENTION, events=()), NO_LIMIT)
    ledger.require_at_least(3)
    refusal = refused(lambda: ledger.require_at_least(4))
    assert refusal.is_a(LEDGER_ROLLED_BACK)
    assert "3 ballots, but 4" in refusal.sentence


@pytest.mark.parametrize("left", ["", "{}", '{"sequence": 1, "hash": "zz", "ballots": 1}'])
def test_a_witness_that_is_gone_or_says_nothing_stops_releases(tmp_path: Path, left: str) -> None:
    filled(tmp_path, 2)
    witness = SiloHome(tmp_path).ledger_witness
    witness.write_text(left) if left else witness.unlink()
    refusal = refused(lambda: opened(tmp_path).spend(ballot(3), NO_LIMIT))
    assert refusal.is_a(LEDGER_ROLLED_BACK)
    assert str(witness) in refusal.sentence
    opened(tmp_path).write_off("private", 0, 1e-5, 0, "anna", "the witness' disk died")
    opened(tmp_path).spend(ballot(3), NO_LIMIT)
    assert opened(tmp_path).spent("private", 0) == 0.75


def test_a_witness_one_behind_is_a_crash_and_no_loss(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    witness = SiloHome(tmp_path).ledger_witness
    behind = witness.read_bytes()
    filled(tmp_path, 3)
    witness.write_bytes(behind)
    assert opened(tmp_path).verify().sequence == 3


# -- after a loss -------------------------------------------------------------------------------------


def rolled_back(home: Path, to: int, of: int) -> None:
    """Puts the ledger back as it was after `to` of `of` ballots."""
    path = SiloHome(home).ledger
    filled(home, to)
    kept = path.read_bytes() if to else b""
    filled(home, of)
    path.write_bytes(kept) if to else path.unlink()


@pytest.mark.parametrize("to", [0, 2])
def test_what_was_lost_is_charged_as_an_estimate_and_the_ledger_goes_on(
    tmp_path: Path, to: int
) -> None:
    rolled_back(tmp_path, to, of=5)
    ledger = opened(tmp_path)
    assert ledger.lacking() == 5 - to
    ledger.write_off("private", 1.5, 1e-5, 5 - to, "anna", "the disk was replaced")
    ledger = opened(tmp_path)
    ledger.require_at_least(5)
    assert ledger.spent("private", 0) == 0.25 * to + 1.5
    last = ledger.releases()[-1]
    assert (last.kind, last.estimate, last.by) == (Kind.WRITE_OFF, True, "anna")
    assert last.lost is not None
    assert last.lost.sequence == 5
    over = refused(lambda: ledger.spend(ballot(6), at_most(lifetime=1.5)))
    assert over.is_a(BUDGET_EXCEEDED)
    ledger.spend(ballot(6), NO_LIMIT)
    opened(tmp_path).verify()


def test_a_write_off_killed_before_the_witness_knows_of_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rolled_back(tmp_path, 2, of=5)
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "_update_witness", lambda *_: None)
        opened(tmp_path).write_off("private", 1.5, 1e-5, 3, "anna", "the disk was replaced")
    assert opened(tmp_path).spent("private", 0) == 2
    opened(tmp_path).spend(ballot(6), NO_LIMIT)
    opened(tmp_path).verify()


def test_the_old_copy_put_back_again_after_a_write_off_is_noticed(tmp_path: Path) -> None:
    rolled_back(tmp_path, 2, of=5)
    old = SiloHome(tmp_path).ledger.read_bytes()
    opened(tmp_path).write_off("private", 1.5, 1e-5, 3, "anna", "the disk was replaced")
    SiloHome(tmp_path).ledger.write_bytes(old)
    assert refused(opened(tmp_path).verify).is_a(LEDGER_ROLLED_BACK)


def test_a_running_trainer_goes_on_after_a_write_off(tmp_path: Path) -> None:
    running, path = filled(tmp_path, 2), SiloHome(tmp_path).ledger
    old = path.read_bytes()
    running.spend(ballot(3), NO_LIMIT)
    path.write_bytes(old)
    assert refused(running.releases).is_a(LEDGER_ROLLED_BACK)
    opened(tmp_path).write_off("private", math.inf, 1e-5, 1, "anna", "restored by mistake")
    running.require_at_least(3)
    assert running.spent("private", 1e-5) == math.inf


def test_nothing_is_written_off_behind_a_broken_chain(tmp_path: Path) -> None:
    filled(tmp_path, 4)
    tampered(tmp_path, edited)
    ledger = opened(tmp_path)
    refusal = refused(lambda: ledger.write_off("private", 1, 1e-5, 0, "anna", "edited"))
    assert refusal.is_a(LEDGER_BROKEN)


def test_only_a_person_can_write_off() -> None:
    values: dict[str, Any] = {"kind": Kind.WRITE_OFF, "dataset": "d", "unit": "row", "delta": 0}
    with pytest.raises(ValidationError, match="a person's estimate"):
        Release.model_validate({**values, "estimate": True})
    with pytest.raises(ValidationError, match="a person's estimate"):
        Release.model_validate({**values, "by": "anna"})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_writes_off_the_trainer_can_use(tmp_path: Path) -> None:
    rolled_back(tmp_path, 0, of=2)
    home = SiloHome(tmp_path)
    for path in (home.trainer, home.ledger_witness.parent):
        os.chown(path, 4321, 4321)
    opened(tmp_path).write_off("private", 1, 1e-5, 2, "root", "lost")
    assert {home.ledger.stat().st_uid, home.ledger_witness.stat().st_uid} == {4321}
