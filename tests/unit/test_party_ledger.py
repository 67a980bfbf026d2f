"""The coordinator's own ledger: costs compose over rounds and tasks, and it says what the audit chain says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from seeded_bits import SeededBits
from store_scenes import ADMIN, NOW, definition, join, publish_set, running, vote

from coordinator.cli.party_view import party_json, spent_rows, unprotected_words
from coordinator.consensus.party_ledger import by_task, require_agreement, spent
from coordinator.consensus.party_noise import PartyEntry, PartyRelease
from coordinator.round_engine import ClosedBy
from coordinator.rounds import close as closing
from coordinator.rounds.close import RoundCloser
from coordinator.store import Store
from coordinator.store.executor import StoreExecutor
from coordinator.store.records import TaskRecord
from wire.errors import PARTY_LEDGER_BROKEN, Refusal
from wire.privacy.accounting import epsilon
from wire.privacy.declaration import PrivacyDemand
from wire.privacy.privacy_filter import epsilon as adaptive_epsilon
from wire.runtime.chain import Head, Link, append, head_of

pytestmark = pytest.mark.slow

RELEASE = PartyRelease(sensitivity=2, gamma_micros=50_000, rows=60)
DELTA = 1e-5


def entry(task: str, number: int, release: PartyRelease = RELEASE) -> PartyEntry:
    return PartyEntry(task, number, NOW, release)


LEDGER = [
    entry("sepsis", 1),
    entry("sepsis", 2),
    entry("stroke", 1, PartyRelease(30, 10_000, 40)),
]


def chain(entries: list[PartyEntry]) -> list[Link]:
    """An audit chain that has published these, between other acts."""
    links: list[Link] = []

    def add(subject: str, details: dict[str, object]) -> None:
        links.append(append(head_of(links), {"subject": subject, "details": details}))

    add("task/sepsis", {"digest": "ab"})
    for one in entries:
        details = {"round": one.round, "digest": "cd", **one.release.audit_details()}
        add(f"task/{one.task}", details)
        add(f"task/{one.task}", {"round": one.round + 1, "digest": "ef"})
    return links


def refused(entries: list[PartyEntry], links: list[Link], before: Head | None = None) -> str:
    with pytest.raises(Refusal) as raised:
        require_agreement(entries, links, before or head_of(links))
    assert raised.value.is_a(PARTY_LEDGER_BROKEN)
    return raised.value.sentence


# -- what was spent -------------------------------------------------------------------------------------


def test_rounds_and_tasks_compose() -> None:
    alone, both = spent(LEDGER[:1], DELTA), spent(LEDGER[:2], DELTA)
    assert alone.epsilon < both.epsilon < 2 * alone.epsilon
    assert both.pure_epsilon == 2 * alone.pure_epsilon == 2 * 60 * 2 * 0.05
    whole = spent(LEDGER, DELTA)
    assert (whole.consensuses, whole.answers) == (3, 160)
    assert whole.pure_epsilon == pytest.approx(12 + 30 * 0.01 * 40)
    assert both.epsilon < whole.epsilon <= whole.pure_epsilon
    assert both.epsilon == epsilon([one.release.event for one in LEDGER[:2]], DELTA)
    # The second task was chosen in sight of the first.
    assert whole.epsilon == adaptive_epsilon([one.release.event for one in LEDGER], DELTA)
    assert whole.epsilon > epsilon([one.release.event for one in LEDGER], DELTA)


def test_a_round_drawn_twice_is_two_consensuses() -> None:
    twice = spent([entry("sepsis", 1, replace(RELEASE, draws=2))], DELTA)
    assert twice == spent(LEDGER[:2], DELTA)


def test_a_ledger_that_forgets_a_draw_is_broken() -> None:
    links = chain([entry("sepsis", 1, replace(RELEASE, draws=2))])
    sentence = refused([entry("sepsis", 1)], links)
    assert "drawn 2 times" in sentence


def test_without_a_delta_costs_add_up_plainly() -> None:
    whole = spent(LEDGER, 0.0)
    assert whole.epsilon == pytest.approx(whole.pure_epsilon)


def test_entries_are_told_apart_by_task() -> None:
    assert by_task(LEDGER) == {"sepsis": LEDGER[:2], "stroke": LEDGER[2:]}


# -- the audit chain agrees -----------------------------------------------------------------------------


def test_a_ledger_that_says_what_the_record_says_is_accepted() -> None:
    links = chain(LEDGER)
    require_agreement(LEDGER, links, head_of(links))
    require_agreement([], chain([]), head_of(chain([])))


def test_what_was_published_while_the_ledger_was_read_may_be_missing_in_it() -> None:
    links = chain(LEDGER)
    before = Head(links[4].sequence, links[4].hash)
    require_agreement(LEDGER[:2], links, before)


def test_an_entry_taken_out_of_the_ledger_is_found() -> None:
    sentence = refused(LEDGER[1:], chain(LEDGER))
    assert "task sepsis, round 1" in sentence
    assert sentence.count("60 rows at γ = 0.05 and sensitivity 2") == 1
    assert "drawn" not in sentence


def test_the_last_entry_before_the_ledger_was_read_must_be_in_it() -> None:
    links = chain(LEDGER)
    published = next(link for link in links if link.entry["subject"] == "task/stroke")
    sentence = refused(LEDGER[:2], links, Head(published.sequence, published.hash))
    assert "task stroke, round 1" in sentence


def test_an_entry_put_into_the_ledger_is_found() -> None:
    assert "task sepsis, round 2" in refused(LEDGER, chain([LEDGER[0], LEDGER[2]]))


@pytest.mark.parametrize(
    "change", [{"sensitivity": 1}, {"gamma_micros": 1}, {"rows": 6}], ids=lambda c: next(iter(c))
)
def test_an_entry_made_cheaper_is_found(change: dict[str, int]) -> None:
    cheaper = [replace(LEDGER[0], release=replace(RELEASE, **change)), *LEDGER[1:]]
    links = chain(LEDGER)
    # Even if the record is thought to have ended before it.
    assert "round 1" in refused(cheaper, links, Head())


# -- as a person sees it --------------------------------------------------------------------------------


def test_the_table_has_every_task_and_their_total() -> None:
    rows = spent_rows(LEDGER, DELTA)
    assert [row["task"] for row in rows] == ["sepsis", "stroke", "all of them"]
    assert [row["consensuses"] for row in rows] == [2, 1, 3]
    assert float(str(rows[-1]["ε"])) == pytest.approx(spent(LEDGER, DELTA).epsilon, rel=1e-3)


def test_scripts_get_entries_costs_and_what_is_not_covered() -> None:
    page = json.loads(json.dumps(party_json(LEDGER, {"bare": 4}, DELTA)))
    assert page["unit"] == "silo"
    assert page["delta"] == DELTA
    assert page["entries"][2]["gamma_micros"] == 10_000
    assert page["tasks"]["sepsis"]["consensuses"] == 2
    assert page["total"]["epsilon"] == spent(LEDGER, DELTA).epsilon
    assert page["rounds_without_party_noise"] == {"bare": 4}
    assert party_json([], {}, DELTA)["total"] == {
        "consensuses": 0,
        "answers": 0,
        "epsilon": 0.0,
        "pure_epsilon": 0.0,
    }


def test_consensuses_without_noise_are_named() -> None:
    assert "bare (4), other (1)" in unprotected_words({"bare": 4, "other": 1})


# -- closing a round --------------------------------------------------------------------------------------


def test_a_coordinator_that_dies_before_it_publishes_draws_anew_and_books_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(f"sqlite:///{tmp_path / 'coordinator.db'}")
    join(store, "north", "south")
    publish_set(store)
    noisy = definition().model_copy(update={"privacy": PrivacyDemand(party_gamma=0.5)})
    store.tasks.create(noisy, NOW, ADMIN)
    current = running(store.tasks.start("sepsis", NOW, ADMIN))
    for silo in ("north", "south"):
        vote(store, silo, b"\x0f\x00")

    def dies(name: str) -> None:
        if name == "consensus-formed":
            raise KeyboardInterrupt

    in_store = StoreExecutor()
    closer = RoundCloser(store, in_store, lambda: NOW, SeededBits(6))

    def close() -> TaskRecord | None:
        return closer.close(store.tasks.get("sepsis"), current, ClosedBy.EVERYONE)

    with monkeypatch.context() as patched:
        patched.setattr(closing, "crash_point", dies)
        with pytest.raises(KeyboardInterrupt):
            close()
    assert store.party_ledger.page() == []
    after = close()
    assert after is not None
    assert store.party_ledger.page() == [
        PartyEntry("sepsis", 1, NOW, PartyRelease(sensitivity=2, gamma_micros=500_000, rows=8))
    ]
    require_agreement(store.party_ledger.page(), store.audit.page(), store.audit.head())
    published = store.tasks.consensus("sepsis")[1]
    assert close() is None
    assert store.tasks.consensus("sepsis", 1)[1] == published
    assert len(store.party_ledger.page()) == 1
    in_store.close()
    store.close()
