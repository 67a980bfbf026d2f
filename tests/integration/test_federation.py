"""Hospitals agree over real processes, sockets and TLS, and nothing but votes leaves them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import joblib
import pytest
from federation import LABELS, PRIVATE_ROWS, ROWS, Federation, Silo, federation, patients
from service import eventually

from silo_agent.agent.audit.entries import Direction, Kind
from silo_agent.trainer.methods.co_training import round_seed
from silo_agent.trainer.models.protocol import IterativeLearner
from silo_agent.trainer.privacy.ledger.ledger import Ledger
from silo_agent.trainer.session import SiloContext, open_session
from silo_agent.trainer.settings import read_settings
from silo_agent.trainer.task_folder import find_task
from wire.ballot import BallotShape, Encoding, digest, pack, unpack
from wire.privacy.randomness import SecureBits
from wire.public_content import inspect
from wire.task.definition import TaskDefinition

NAMES = ("north", "south", "west")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Three hospitals at work: a gated tree, a logistic regression and a torch network."""
    with federation(tmp_path_factory.mktemp("everyday")) as made:
        network = {"name": "torch_mlp", "parameters": {"hidden": [8], "learning_rate": 0.05}}
        silos = [
            made.join("north"),
            made.join("south", model="logistic_regression"),
            made.join("west", model=network),
        ]
        made.run(*silos)
        yield made


def test_a_task_runs_to_its_end_and_every_vote_is_counted_once(live: Federation) -> None:
    live.start("everyday", rounds={"max_rounds": 3})
    history = live.until_finished("everyday")

    assert history.task.reason == "All 3 rounds were held."
    assert [closed.consensus.round for closed in history.history] == [1, 2, 3]
    assert {closed.closed_by for closed in history.history} == {"everyone voted"}
    assert all(tuple(closed.voted) == NAMES for closed in history.history)
    stored = live.ballots("everyday")
    assert stored.keys() == {(number, name) for number in (1, 2, 3) for name in NAMES}
    accepted = live.counted("consilium_ballots_accepted_total", task="everyday")
    assert accepted == len(stored)
    closed = {"task": "everyday", "by": "everyone voted"}
    assert live.counted("consilium_rounds_closed_total", **closed) == 3
    for name, silo in live.silos.items():
        silo.agent.until("task_finished", task="everyday")
        moves = [move for move in silo.audit_entries() if move.task == "everyday"]
        sent = [move for move in moves if move.direction is Direction.OUT]
        assert {move.kind for move in sent} == {Kind.BALLOT}, "only ballots leave"
        assert {(move.round, name): move.digest for move in sent} == {
            key: digest for key, digest in stored.items() if key[1] == name
        }
        size = BallotShape(ROWS, len(LABELS), Encoding.INDEX).size_bytes
        assert {move.bytes for move in sent} == {size}
        receipts = [move.digest for move in moves if move.kind is Kind.RECEIPT]
        assert receipts == [move.digest for move in sent]
        assert [move.round for move in moves if move.kind is Kind.CONSENSUS] == [1, 2, 3]


def test_every_hospital_keeps_a_model_that_reads_its_own_rows(live: Federation) -> None:
    live.start("models", rounds={"max_rounds": 1})
    live.until_finished("models")
    test = patients(200, seed=99)
    rows, truth = test.drop(columns="diagnosis"), test["diagnosis"]
    for silo in live.silos.values():
        silo.agent.until("model_kept", task="models")
        path = find_task(silo.home.trainer / "tasks", "models").model_path()
        assert path is not None
        answers = joblib.load(path).predict(rows)
        assert set(answers) == set(LABELS)
        # Far above chance; how far is not this test's business.
        assert (answers == truth).mean() > 0.6


def test_rows_without_a_qualified_majority_are_left_out_of_training(live: Federation) -> None:
    before = len(live.silos["north"].fits())
    live.start(
        "qualified",
        rounds={"max_rounds": 2},
        consensus={"rule": "qualified_majority", "min_share": 1.0},
    )
    history = live.until_finished("qualified").history
    live.silos["north"].agent.until("task_finished", task="qualified")

    abstained = [closed.consensus.abstained_rows for closed in history]
    assert 0 < abstained[0] < ROWS
    # One fit per round and one for the model that stays at home.
    assert live.silos["north"].fits()[before:] == [
        PRIVATE_ROWS,
        PRIVATE_ROWS + ROWS - abstained[0],
        PRIVATE_ROWS + ROWS - abstained[1],
    ]


def test_a_network_continues_where_it_was_even_if_its_trainer_dies_between_rounds(
    live: Federation,
) -> None:
    north, west = live.silos["north"], live.silos["west"]
    schedule = {"rounds": {"max_rounds": 4}, "local_steps": 3}
    live.start("unbroken", **schedule)
    live.until_finished("unbroken")

    north.close_gate()
    live.start("broken", **schedule)
    live.until_voted("broken", "south", "west")
    trainer = west.trainer()
    os.kill(trainer, signal.SIGKILL)
    west.agent.until("trainer_died", status=-signal.SIGKILL)
    north.open_gate()
    live.until_finished("broken")

    assert west.trainer() != trainer
    assert live.ballots("broken") == live.ballots("unbroken")
    cast = [live.ballots("broken")[number, "west"] for number in (1, 2, 3, 4)]
    assert cast == ballots_of_one_network(west, "broken", live.consensuses("broken")[:-1])
    assert len(set(cast)) > 1, "a few steps do not settle it"


def ballots_of_one_network(silo: Silo, task: str, consensuses: list[bytes]) -> list[str]:
    """Digests of what a single network casts here that learns on from round to round in one process."""
    tasks = silo.home.trainer / "tasks"
    path = next(path for path in tasks.glob("*/definition.json") if f'"{task}"' in path.read_text())
    definition = TaskDefinition.model_validate_json(path.read_text())
    public = silo.home.public_sets / definition.public_set
    _, schema = inspect(public)
    settings = read_settings(silo.home.settings_file)
    scratch = silo.home.root / "scratch"
    ledger = Ledger(scratch / "ledger.db", scratch / "witness.json", lambda: datetime.now(UTC))
    silo_context = SiloContext(settings, silo.home.root, scratch, ledger, SecureBits())
    session, _ = open_session(definition, schema, public, silo_context)
    assert session is not None
    training, shape = session.learner.training, session.shape
    network = training.build(training.seed)
    assert isinstance(network, IterativeLearner)
    cast = []
    for number, consensus in enumerate([None, *consensuses], start=1):
        labels = None if consensus is None else unpack(consensus, shape.as_index())
        pseudo = training.pseudo_labelled(labels)
        seed = round_seed(training.seed, number)
        network.advance(training.private, pseudo, definition.local_steps, seed)
        cast.append(digest(pack(network.predict(training.public), shape)))
    return cast


def test_a_silo_stopped_by_its_operator_frees_its_lease_at_once(live: Federation) -> None:
    south = live.silos["south"]
    assert live.silo("south").connected
    trainer = south.trainer()
    assert south.agent.stop() == 0
    assert not live.silo("south").connected
    assert live.counted("consilium_silo_connected", silo="south") == 0
    eventually("its trainer ended with it", lambda: not Path(f"/proc/{trainer}").exists())
    live.run(south)
    assert live.silo("south").connected
