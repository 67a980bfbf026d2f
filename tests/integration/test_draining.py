"""SIGTERM at the worst moment: every process ends with status 0 in time, and nothing is lost or paid for twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from federation import HERE, Federation, Silo, federation
from postgres import PostgresServer
from service import Service, alive, eventually, free_port

from coordinator.cli.coordinator import init
from coordinator.probe import WHO as COORDINATOR
from silo_agent.shared.probe import COMPONENT as AGENT
from silo_agent.shared.probe import CONNECTED
from silo_agent.trainer.privacy.ledger.ledger import Ledger
from silo_agent.trainer.privacy.ledger.release import Kind
from wire.consilium.v1 import rounds_pb2
from wire.runtime.health import health_socket, query_health

LONG = "1000"
"""Seconds to drain that no test waits for: what ends within them has ended by itself."""
XOR = {"mechanism": {"name": "xor", "paid_rounds": 2}, "epsilon": 8.0}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation(tmp_path_factory.mktemp("draining")) as made:
        yield made


@pytest.fixture
def services() -> Iterator[list[Service]]:
    started: list[Service] = []
    yield started
    for service in started:
        service.end()
        print(f"----- {service.log.name}\n{service.text()}")


def process(silo: Silo, services: list[Service], command: str, drain: str) -> Service:
    """One side of a hospital as a container has it, started; its log is new."""
    log = silo.home.root.with_name(f"{silo.name}-{len(services)}-{command}.log")
    arguments = ["agent", command, "--home", str(silo.home.root), "--drain", drain]
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    service = Service(arguments, log, {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"})
    services.append(service)
    service.start()
    return service


def start(live: Federation, silo: Silo, rounds: int) -> None:
    """A task for this silo alone, called like it."""
    live.start(
        silo.name,
        silos=[silo.name],
        encoding="one_hot",
        rounds={"max_rounds": rounds, "quorum": 1},
    )


def until_training(silo: Silo, fits: int) -> None:
    eventually(f"{silo.name} trains", lambda: len(silo.fits()) == fits)


def until_asked_again(live: Federation, silo: Silo) -> None:
    """Waits for a heartbeat from now on that says the silo trains."""
    before = live.silo(silo.name).last_seen_at.ToNanoseconds()

    def training() -> bool:
        known = live.silo(silo.name)
        later = known.last_seen_at.ToNanoseconds() > before
        return later and known.activity == rounds_pb2.ACTIVITY_TRAINING

    eventually(f"{silo.name} is asked again", training)


def paid_rounds(silo: Silo) -> list[tuple[int, bool]]:
    """Every entry of the ledger: its round, and whether it cost anything."""
    ledger = Ledger(silo.home.ledger, silo.home.ledger_witness, lambda: datetime.now(UTC))
    ledger.verify()
    releases = ledger.releases()
    assert all(release.kind is Kind.BALLOT for release in releases)
    return [(release.round, release.costs) for release in releases]


def child_of(silo: Silo) -> int:
    """The process that the learner started last; see `parents`."""
    return int((silo.gate / "child").read_text())


def test_a_trainer_finishes_what_ends_in_time_and_stops_without_what_does_not(
    live: Federation, services: list[Service]
) -> None:
    silo = live.join("north", privacy=XOR)
    settings = silo.home.settings_file
    settings.write_text(settings.read_text().replace("learners:GatedTree", "parents:ParentTree"))
    silo.close_gate()
    relay = process(silo, services, "relay", LONG)
    hasty = process(silo, services, "trainer", "0.5")
    relay.until("connected")
    start(live, silo, rounds=2)
    until_training(silo, fits=1)
    assert alive(child := child_of(silo))

    assert hasty.stop() == 0
    assert hasty.events("stopped_unfinished")
    assert not alive(child), "a learner's process outlived the trainer"
    assert paid_rounds(silo) == []
    assert live.ballots("north") == {}

    patient = process(silo, services, "trainer", LONG)
    until_training(silo, fits=2)
    assert alive(child := child_of(silo))
    os.kill(patient.pid, signal.SIGTERM)
    patient.until("trainer_stopping")
    silo.open_gate()
    assert patient.wait() == 0
    assert not patient.events("stopped_unfinished")
    assert not alive(child)
    assert paid_rounds(silo) == [(1, True)]
    eventually("the ballot of round 1", lambda: live.ballots("north").keys() == {(1, "north")})

    process(silo, services, "trainer", LONG)
    live.until_finished("north")
    assert live.ballots("north").keys() == {(1, "north"), (2, "north")}
    assert paid_rounds(silo) == [(1, True), (2, True)]
    assert not relay.ended()
    assert relay.stop() == 0
    assert not live.silo("north").connected


def test_an_agent_that_leaves_and_returns_finds_its_training_still_under_way(
    live: Federation, services: list[Service]
) -> None:
    silo = live.join("east", privacy=XOR)
    silo.close_gate()
    process(silo, services, "trainer", LONG)
    relay = process(silo, services, "relay", LONG)
    relay.until("connected")
    start(live, silo, rounds=1)
    until_training(silo, fits=1)

    assert relay.stop() == 0
    assert not relay.events("stopped_unfinished")
    assert not live.silo("east").connected, "it did not hand back its lease"
    process(silo, services, "relay", LONG).until("connected")
    until_asked_again(live, silo)
    silo.open_gate()

    live.until_finished("east")
    assert paid_rounds(silo) == [(1, True)]
    assert live.ballots("east").keys() == {(1, "east")}
    services[-1].until("task_finished")
    assert len(silo.fits()) == 2, "once for the vote, once for the model kept at home"


def test_a_hospital_stopped_while_it_trains_votes_once_after_its_restart(
    live: Federation, services: list[Service]
) -> None:
    silo = live.join("south", privacy=XOR)
    silo.close_gate()
    hospital = process(silo, services, "run", "3")
    hospital.until("connected")
    start(live, silo, rounds=1)
    until_training(silo, fits=1)
    trainer = int(Path(f"/proc/{hospital.pid}/task/{hospital.pid}/children").read_text().split()[0])

    assert hospital.stop() == 0
    # The trainer's own last words: it is left less time than the agent has.
    assert 1.0 in [event["drain_seconds"] for event in hospital.events("stopped_unfinished")]
    assert not alive(trainer)
    assert not live.silo("south").connected
    assert paid_rounds(silo) == []

    process(silo, services, "run", "3").until("connected")
    until_training(silo, fits=2)
    silo.open_gate()
    live.until_finished("south")
    assert paid_rounds(silo) == [(1, True)]
    assert live.ballots("south").keys() == {(1, "south")}


def test_a_coordinator_that_stops_sends_everyone_away_and_they_come_back(
    live: Federation, services: list[Service]
) -> None:
    silo = live.join("west", privacy=XOR)
    silo.close_gate()
    process(silo, services, "trainer", LONG)
    relay = process(silo, services, "relay", LONG)
    coordinator, agent = health_socket(live.home, COORDINATOR), health_socket(silo.home.root, AGENT)
    relay.until("connected")
    start(live, silo, rounds=1)
    until_training(silo, fits=1)
    states = [(coordinator, ""), (agent, ""), (agent, CONNECTED), (silo.home.socket, "")]
    eventually("all are well", lambda: [query_health(*state) for state in states] == [True] * 4)

    assert live.coordinator.stop() == 0
    assert not live.coordinator.events("stopped_unfinished"), "a stream held it up"
    relay.until("disconnected")
    eventually("the agent knows", lambda: query_health(agent, CONNECTED) is False)
    assert [query_health(*state) for state in states] == [None, True, False, True]
    live.serve()
    eventually("it is back", lambda: query_health(agent, CONNECTED))
    silo.open_gate()
    live.until_finished("west")
    assert "being stopped or started again" in relay.events("disconnected")[0]["sentence"]
    assert len(relay.events("connected")) == 2
    assert live.ballots("west").keys() == {(1, "west")}
    assert paid_rounds(silo) == [(1, True)]


def test_a_coordinator_without_its_database_is_alive_and_knows_how_to_end(
    tmp_path: Path, own_postgres: PostgresServer, services: list[Service]
) -> None:
    home = tmp_path / "coordinator"
    ports = [free_port() for _ in range(3)]
    init(
        home=home,
        database=own_postgres.fresh_url(),
        listen="127.0.0.1",
        port=ports[0],
        enrolment_port=ports[1],
        metrics_port=ports[2],
    )
    arguments = ["coordinator", "serve", "--home", str(home), "--drain", LONG]
    coordinator = Service(arguments, tmp_path / "coordinator.log", {})
    services.append(coordinator)
    coordinator.start()
    coordinator.until("change_listen_connected")
    own_postgres.stop()
    # The second time there is nobody any more to connect to.
    eventually("an outage", lambda: len(coordinator.events("change_listen_interrupted")) > 1)
    assert query_health(health_socket(home, COORDINATOR)) is True
    assert coordinator.stop() == 0
    assert not coordinator.events("stopped_unfinished")
