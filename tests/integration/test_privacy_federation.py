"""Hospitals with budgets federate over real processes: paid ballots leave, and nothing beyond the budget does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from coordinator_process import consilium
from federation import ROWS, Federation, Silo, federation
from service import eventually

from silo_agent.agent.audit.entries import AuditEntry, Direction
from silo_agent.agent.audit.entries import Kind as Moved
from silo_agent.trainer.privacy.ledger.ledger import Ledger
from silo_agent.trainer.privacy.ledger.release import Kind, Release
from silo_agent.trainer.task_folder import find_task
from wire.consilium.v1 import rounds_pb2

PRIVACY = {
    "north": {"mechanism": "private_labeller", "epsilon": 1.0, "lifetime_epsilon": 1.2},
    "south": {"mechanism": {"name": "xor", "paid_rounds": 1}, "epsilon": 4.0},
    "west": {"mechanism": {"name": "teacher_votes", "teachers": 5, "rows": 8}, "epsilon": 2.0},
}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation(tmp_path_factory.mktemp("private")) as made:
        silos = [made.join(name, "logistic_regression", PRIVACY[name], rows=60) for name in PRIVACY]
        made.run(*silos)
        made.start("first", encoding="one_hot", rounds={"max_rounds": 3})
        made.until_finished("first")
        for silo in silos:
            silo.agent.until("task_finished", task="first")
        yield made


def ledger(silo: Silo) -> Ledger:
    return Ledger(silo.home.ledger, silo.home.ledger_witness, lambda: datetime.now(UTC))


def releases(silo: Silo, task: str) -> list[Release]:
    return [release for release in ledger(silo).releases() if release.task == task]


def ballots(silo: Silo, task: str) -> list[AuditEntry]:
    """What left, according to the network side."""
    return [move for move in silo.audit_entries() if (move.kind, move.task) == (Moved.BALLOT, task)]


@pytest.mark.parametrize(
    ("name", "kinds", "costly"),
    [
        ("north", [Kind.BALLOT, Kind.BALLOT, Kind.BALLOT], [True, False, False]),
        ("south", [Kind.BALLOT, Kind.REPETITION, Kind.REPETITION], [True, False, False]),
        ("west", [Kind.BALLOT, Kind.REPETITION, Kind.REPETITION], [True, False, False]),
    ],
)
def test_every_ballot_that_left_is_on_the_books_and_paid_for_once(
    live: Federation, name: str, kinds: list[Kind], costly: list[bool]
) -> None:
    silo = live.silos[name]
    entries = releases(silo, "first")
    assert [entry.round for entry in entries] == [1, 2, 3]
    assert [entry.kind for entry in entries] == kinds
    assert [entry.costs for entry in entries] == costly
    # All that will ever be paid for was planned, and is on the books with the first ballot.
    assert entries[0].plan == entries[0].events
    sent = ballots(silo, "first")
    assert {move.direction for move in sent} == {Direction.OUT}
    assert [move.digest for move in sent] == [entry.ballot_digest for entry in entries]
    assert [move.digest for move in sent] == [
        live.ballots("first")[number, name] for number in (1, 2, 3)
    ]
    spent = ledger(silo).spent("private", 1e-5)
    assert 0.9 * PRIVACY[name]["epsilon"] < spent <= PRIVACY[name]["epsilon"]


def test_the_model_at_home_is_trained_on_private_rows_and_consensus(live: Federation) -> None:
    for silo in live.silos.values():
        assert find_task(silo.home.tasks, "first").model_path() is not None


def test_the_ledger_is_read_by_people_and_scripts(live: Federation) -> None:
    north = live.silos["north"].home.root
    told = consilium("agent", "ledger", "--home", north)
    assert "3 ballots left this hospital" in told.out
    facts = json.loads(consilium("agent", "ledger", "--home", north, "--json").out)
    assert len(facts["entries"]) >= 3
    lines = consilium("agent", "ledger", "--home", north, "--csv", "-").out.splitlines()
    assert len(lines) == 1 + len(facts["entries"])
    assert "whole" in consilium("agent", "ledger", "verify", "--home", north, "--json").out


def test_a_spent_budget_makes_a_silo_abstain_and_stay(live: Federation) -> None:
    """North's lifetime budget does not pay for a second head: it abstains, hears the consensus, keeps a model."""
    live.start("second", encoding="index", rounds={"max_rounds": 2}, silos=["north", "west"])
    history = live.until_finished("second")
    assert [closed.closed_by for closed in history.history] == ["everyone voted"] * 2
    north = live.silos["north"]
    entries = releases(north, "second")
    assert [entry.kind for entry in entries] == [Kind.ABSTENTION] * 2
    assert "lifetime budget ε = 1.2 at δ = 1e-05 would be exceeded" in entries[0].reason
    assert north.agent.events("budget_spent")
    north.agent.until("task_finished", task="second")
    assert find_task(north.home.tasks, "second").model_path() is not None
    assert ledger(north).spent("private", 1e-5) <= 1.0
    # What it heard are the votes west cast on the rows its teachers answered, and nothing of its own.
    (closed, _) = history.history
    assert closed.consensus.abstained_rows >= ROWS - 8


def test_a_task_that_asks_for_more_is_refused_at_home_and_no_silo_weakens(live: Federation) -> None:
    demand = {"mechanisms": ["private_labeller"], "max_epsilon": 1.0}
    live.start("strict", encoding="index", silos=["north", "west"], privacy=demand)
    west = live.silos["west"]
    refused = west.agent.until("refused_by_policy", task="strict")
    assert "it accepts private_labeller, not teacher_votes" in refused["sentence"]
    live.until_voted("strict", "north")
    assert not ballots(west, "strict")
    refusing = rounds_pb2.ACTIVITY_REFUSED_BY_POLICY
    eventually("west's refusal seen", lambda: live.silo("west").activity == refusing)
    live.pause("strict")


def test_an_old_copy_of_the_ledger_is_noticed_wherever_it_was_put_back(
    live: Federation, tmp_path: Path
) -> None:
    """South's whole private side is restored from a backup: its own witness too. The coordinator remembers."""
    south = live.silos["south"]
    south.agent.end()
    for path in (south.home.ledger, south.home.ledger_witness):
        shutil.move(path, tmp_path / path.name)
    shutil.rmtree(south.home.tasks)
    live.run(south)
    live.start("third", encoding="one_hot", silos=["south", "west"])
    delayed = south.agent.until("task_delayed", task="third")
    assert delayed["code"] == "LEDGER_ROLLED_BACK"
    assert "0 ballots, but 3 were handed out" in delayed["sentence"]
    live.until_voted("third", "west")
    assert not ballots(south, "third")

    # With the ledger back, it goes on.
    for path in (south.home.ledger, south.home.ledger_witness):
        shutil.move(tmp_path / path.name, path)
    south.agent.end()
    live.run(south)
    live.until_finished("third")
    assert len(releases(south, "third")) == 3


def test_what_a_silo_declared_stands_with_its_ballot(live: Federation) -> None:
    told = consilium("task", "show", "first", "--home", live.home)
    for words in ("private_labeller", "xor", "teacher_votes"):
        assert words in told.out


def test_a_silo_yaml_that_leaves_the_noise_open_is_told_at_once(tmp_path: Path) -> None:
    settings = {
        "data": {"path": "data.csv", "label": "diagnosis"},
        "model": "decision_tree",
        "privacy": {"mechanism": "none", "epsilon": 1},
    }
    (tmp_path / "silo.yaml").write_text(yaml.safe_dump(settings))
    told = consilium("agent", "check", "--home", tmp_path, status=1)
    assert "mechanism none has no ε" in told.out + told.err


def test_the_same_patients_under_a_new_name_release_nothing_until_a_person_says_why(
    live: Federation,
) -> None:
    west = live.silos["west"]

    def restarted(**privacy: object) -> None:
        settings = yaml.safe_load(west.home.settings_file.read_text())
        settings["privacy"] |= privacy
        west.home.settings_file.write_text(yaml.safe_dump(settings))
        west.agent.end()
        live.run(west)

    restarted(dataset="renamed")
    live.start("renamed", encoding="index", silos=["north", "west"])
    delayed = west.agent.until("task_delayed", task="renamed")
    assert delayed["code"] == "PATIENTS_CHARGED_ELSEWHERE"
    assert "private" not in delayed["sentence"]
    live.until_voted("renamed", "north")
    assert not ballots(west, "renamed")
    told = consilium("agent", "check", "--home", west.home.root, status=1)
    assert "data set private: 60 of these patients" in told.out + told.err

    restarted(same_patients_as={"private": "a new register, the same cohort"})
    live.until_finished("renamed")
    books = ledger(west)
    assert len(ballots(west, "renamed")) == 3
    assert books.spent("renamed", 1e-5) == books.spent("private", 1e-5)
    assert books.spent("renamed", 1e-5) > books.spent(
        "renamed", 1e-5, releases(west, "renamed")[0].task_digest
    )
