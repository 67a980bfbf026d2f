"""What every database behind the coordinator must do with declarations and with its own privacy ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest
from store_scenes import (
    ADMIN,
    HOUR,
    LATER,
    NOW,
    accept,
    ballot,
    consensus,
    definition,
    join,
    open_task,
    publish_set,
    running,
    vote,
)

from coordinator.consensus.party_ledger import require_agreement
from coordinator.consensus.party_noise import PartyEntry, PartyRelease
from coordinator.round_engine import ClosedBy
from coordinator.store import Store, party_releases
from coordinator.store.records import SiloDeclaration
from wire.privacy.declaration import Declaration, MechanismName, Unit


class PrivacyContract:
    """Runs against the empty database of a subclass's fixture `store`."""

    def test_a_declaration_is_kept_with_its_ballot_and_in_the_audit_chain(
        self, store: Store
    ) -> None:
        open_task(store, "north", "south")
        declared = Declaration(
            mechanism=MechanismName.XOR,
            epsilon=2.5,
            delta=1e-6,
            unit=Unit.PATIENT,
            estimate=True,
            one_if_voted=0.9,
            one_if_not=0.1,
        )
        said = replace(ballot("north"), declaration=declared)
        assert accept(store, said, b"\x01\x02").declaration == declared
        assert store.ballots.held("sepsis", 1, "north").declaration == declared
        details = store.audit.page()[-1].entry["details"]
        assert isinstance(details, dict)
        assert details["mechanism"] == "xor"
        assert (details["epsilon_micros"], details["delta_picos"]) == (2_500_000, 1_000_000)
        assert (details["unit"], details["estimate"]) == ("patient", 1)
        vote(store, "south")
        assert store.ballots.declarations("sepsis", 1) == {
            "north": declared,
            "south": Declaration(),
        }

    def test_what_was_declared_first_stands(self, store: Store) -> None:
        open_task(store, "north", "south")
        first = Declaration(mechanism=MechanismName.XOR, epsilon=1.0)
        better = Declaration(mechanism=MechanismName.XOR, epsilon=0.5)
        accept(store, replace(ballot("north"), declaration=first), b"\x01\x02")
        again = accept(store, replace(ballot("north"), declaration=better), b"\x01\x02")
        assert (again.already_held, again.declaration) == (True, first)

    def test_the_latest_declaration_of_each_silo_is_found(self, store: Store) -> None:
        current = open_task(store, "north", "south")
        early, late = (Declaration(mechanism=MechanismName.XOR, epsilon=e) for e in (1.0, 2.0))
        accept(store, replace(ballot("north"), declaration=early), b"\x01\x02")
        accept(store, replace(ballot("south"), declaration=early), b"\x01\x02")
        store.tasks.begin_close(current, ClosedBy.EVERYONE)
        store.tasks.publish(current, consensus(), LATER)
        second = ballot("north", number=2)
        accept(store, replace(second, declaration=late), b"\x01\x02")
        assert store.ballots.latest_declarations("sepsis") == [
            SiloDeclaration("north", 2, late),
            SiloDeclaration("south", 1, early),
        ]
        assert store.ballots.latest_declarations("stroke") == []
        assert (store.ballots.number_held("north"), store.ballots.number_held("south")) == (2, 1)
        assert store.ballots.number_held("west") == 0

    def test_a_noisy_consensus_is_booked_once_with_its_publication(self, store: Store) -> None:
        current = open_task(store, "north", "south")
        release = PartyRelease(sensitivity=2, gamma_micros=100_000, rows=8)
        noisy = replace(consensus(), release=release)
        assert running(store.tasks.publish(current, noisy, LATER)) == current
        assert store.party_ledger.page() == []
        store.tasks.begin_close(current, ClosedBy.EVERYONE)
        store.tasks.publish(current, noisy, LATER)
        store.tasks.publish(current, noisy, NOW + HOUR)
        assert store.party_ledger.page() == [PartyEntry("sepsis", 1, LATER, release)]
        details = store.audit.page()[-1].entry["details"]
        assert PartyRelease.in_audit(details) == release
        require_agreement(store.party_ledger.page(), store.audit.page(), store.audit.head())

    def test_consensuses_that_only_silos_remember_are_kept_with_their_ballots(
        self, store: Store
    ) -> None:
        current = open_task(store, "north", "south", "west")
        seen = {"north": ("aa", "bb"), "south": (), "west": ("bb",)}
        for silo, digests in seen.items():
            told = replace(ballot(silo), consensuses_seen=digests)
            accept(store, told, b"\x01\x02")
            assert store.ballots.held("sepsis", 1, silo).consensuses_seen == digests
        assert store.ballots.consensuses_seen("sepsis", 1) == {"aa", "bb"}
        assert store.ballots.consensuses_seen("sepsis", 2) == set()
        store.tasks.begin_close(current, ClosedBy.EVERYONE)
        release = PartyRelease(sensitivity=2, gamma_micros=1, rows=8, draws=3)
        current = running(
            store.tasks.publish(current, replace(consensus(), release=release), LATER)
        )
        assert store.party_ledger.page() == [PartyEntry("sepsis", 1, LATER, release)]
        store.tasks.begin_close(current, ClosedBy.EVERYONE)
        once = replace(release, draws=1)
        store.tasks.publish(current, replace(consensus(), release=once), LATER)
        assert store.party_ledger.draws() == {"sepsis": 4}

    def test_a_consensus_without_noise_is_not_in_the_ledger(self, store: Store) -> None:
        current = open_task(store, "north", "south")
        store.tasks.begin_close(current, ClosedBy.EVERYONE)
        store.tasks.publish(current, consensus(), LATER)
        assert store.party_ledger.page() == []
        assert PartyRelease.in_audit(store.audit.page()[-1].entry["details"]) is None

    def test_the_ledger_is_read_page_by_page_in_order(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(party_releases, "_PAGE", 2)
        join(store, "north", "south")
        publish_set(store)
        release = PartyRelease(sensitivity=2, gamma_micros=1, rows=8)
        for name in ("a-c", "ab"):
            store.tasks.create(definition(name, max_rounds=9), NOW, ADMIN)
            current = running(store.tasks.start(name, NOW, ADMIN))
            for _ in range(3):
                store.tasks.begin_close(current, ClosedBy.EVERYONE)
                published = replace(consensus(), release=release)
                current = running(store.tasks.publish(current, published, LATER))
        found: list[tuple[str, int]] = []
        while page := store.party_ledger.page(found[-1] if found else ("", 0)):
            assert len(page) <= 2
            found += [(entry.task, entry.round) for entry in page]
        assert found == [(name, number) for name in ("a-c", "ab") for number in (1, 2, 3)]
