"""What happens when something dies, is slow, is copied or does not fit: real processes, real kill -9."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from federation import Federation, Silo, digests, federation
from patience import LEASE_SECONDS
from service import eventually

from silo_agent.agent.audit.entries import Kind
from wire.consilium.v1 import admin_pb2, rounds_pb2, task_pb2

NAMES = ("north", "south", "west")


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Federation]:
    """A coordinator that serves; no silo yet."""
    with federation(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The consensus digests of three rounds of three silos when nothing goes wrong."""
    with federation(tmp_path_factory.mktemp("undisturbed")) as made:
        made.run(*(made.join(name) for name in NAMES))
        made.start("trial")
        return digests(made.until_finished("trial"))


def everyone_once(rounds: int) -> set[tuple[int, str]]:
    return {(number, name) for number in range(1, rounds + 1) for name in NAMES}


def until_training(silo: Silo, fits: int = 1) -> None:
    """Waits until the trainer stands before the closed gate for the `fits`-th time."""
    eventually(f"{silo.name} trains", lambda: len(silo.fits()) == fits)


def test_a_silo_killed_while_it_trains_votes_once_after_its_restart(
    live: Federation, undisturbed: list[str]
) -> None:
    north, south, west = (live.join(name) for name in NAMES)
    west.close_gate()
    live.run(north, south, west)
    live.start("trial")
    live.until_voted("trial", "north", "south")
    until_training(west)
    trainer = west.trainer()

    west.agent.kill()
    eventually("the trainer follows its agent", lambda: not Path(f"/proc/{trainer}").exists())
    live.run(west)
    until_training(west, fits=2)
    west.open_gate()

    assert digests(live.until_finished("trial")) == undisturbed
    assert live.ballots("trial").keys() == everyone_once(3)


def test_a_coordinator_killed_between_ballots_loses_none_and_counts_none_twice(
    live: Federation, undisturbed: list[str]
) -> None:
    silos = [live.join(name) for name in NAMES]
    west = silos[-1]
    west.close_gate()
    live.run(*silos)
    live.start("trial")
    live.until_voted("trial", "north", "south")
    accepted = live.ballots("trial")

    live.coordinator.kill()
    until_training(west)
    west.open_gate()
    # The ballot is ready while nobody is there to take it.
    west.agent.until("task_delayed", code="UNREACHABLE")
    live.serve()

    history = live.until_finished("trial")
    assert digests(history) == undisturbed
    stored = live.ballots("trial")
    assert accepted.items() <= stored.items()
    assert stored.keys() == everyone_once(3)
    assert [closed.consensus.ballots for closed in history.history] == [3, 3, 3]
    for silo in silos:
        assert len(silo.agent.events("connected")) == 2, "it reconnected by itself"
        assert not silo.agent.ended()


def test_a_killed_trainer_is_started_again_and_the_lease_outlives_long_training(
    live: Federation, undisturbed: list[str]
) -> None:
    north, south, west = (live.join(name) for name in NAMES)
    west.close_gate()
    live.run(north, south, west)
    live.start("trial")
    until_training(west)

    began = live.silo("west").last_seen_at.seconds

    def beating() -> admin_pb2.Silo | None:
        silo = live.silo("west")
        return silo if silo.last_seen_at.seconds > began + 3 * LEASE_SECONDS else None

    seen = eventually("heartbeats over several leases of blocked training", beating)
    assert seen.connected
    assert seen.activity == rounds_pb2.ACTIVITY_TRAINING
    assert not west.agent.events("disconnected")

    first = west.trainer()
    os.kill(first, signal.SIGKILL)
    west.agent.until("trainer_died", status=-signal.SIGKILL)
    until_training(west, fits=2)
    assert west.trainer() != first
    west.open_gate()

    assert digests(live.until_finished("trial")) == undisturbed
    assert live.ballots("trial").keys() == everyone_once(3)
    assert len(west.agent.events("connected")) == 1


def test_the_trainer_cannot_reach_the_network_and_the_agent_says_so(live: Federation) -> None:
    north = live.join("north")
    live.run(north)
    found = north.agent.until("trainer_found")
    agent, trainer = (
        Path(f"/proc/{process}/ns/net").readlink() for process in (north.agent.pid, north.trainer())
    )
    devices = Path(f"/proc/{north.trainer()}/net/dev").read_text().splitlines()[2:]
    interfaces = {line.split(":")[0].strip() for line in devices}
    match found["isolation"]:
        case "own_namespace":
            assert trainer != agent
            assert interfaces == {"lo"}
        case "container":
            assert interfaces <= {"lo"}
        case other:
            assert other == "none"
            assert "kernel refused" in found["note"]


def test_a_round_closes_without_a_silo_that_never_answers_and_it_catches_up_later(
    live: Federation,
) -> None:
    north, south, west = (live.join(name) for name in NAMES)
    live.run(north, south)
    # Grace beyond the deadline: only the deadline can close a round that one silo misses.
    live.start("trial", rounds={"max_rounds": 100_000, "deadline": "1s", "max_extensions": 1000})
    eventually("two rounds without west", lambda: len(live.show("trial").history) >= 2)
    missed = live.show("trial").history
    assert {closed.closed_by for closed in missed} == {"deadline"}
    assert all(list(closed.voted) == ["north", "south"] for closed in missed)

    west.agent.start()
    eventually(
        "a round with west", lambda: any("west" in c.voted for c in live.show("trial").history)
    )
    live.pause("trial")

    history = live.show("trial").history
    joined = next(closed.consensus.round for closed in history if "west" in closed.voted)
    assert joined > len(missed)
    assert min(number for number, name in live.ballots("trial") if name == "west") == joined
    fetched = [move.round for move in west.audit_entries() if move.kind is Kind.CONSENSUS]
    assert fetched[0] >= len(missed), "what it missed is not made up for"
    assert joined - 1 in fetched, "it went on with the consensus before its first ballot"


def test_below_the_quorum_a_round_is_extended_then_paused_and_goes_on_when_resumed(
    live: Federation,
) -> None:
    north, south = live.join("north"), live.join("south")
    south.close_gate()
    live.run(north, south)
    live.start("trial", rounds={"max_rounds": 1, "deadline": "1s", "max_extensions": 1})
    until_training(south)
    live.coordinator.until("round_extended", task="trial", round=1)
    eventually("a pause", lambda: live.status("trial") == task_pb2.TASK_STATUS_PAUSED)
    paused = live.show("trial").task
    first = live.ballots("trial")
    # North's, unless this machine is so slow that it comes after both deadlines.
    assert first.keys() <= {(1, "north")}
    assert f"Round 1 has {len(first)} of the 2 ballots it needs after 2 deadlines" in paused.reason

    south.open_gate()
    south.agent.until("task_delayed", task="trial", code="TASK_NOT_RUNNING")
    live.resume("trial")

    assert list(live.until_finished("trial").history[0].voted) == ["north", "south"]
    assert first.items() <= live.ballots("trial").items()


def test_second_agents_of_one_name_are_refused_and_the_first_goes_on_until_revoked(
    live: Federation, tmp_path: Path
) -> None:
    north = live.join("north")
    live.run(north)
    twins = [twin_of(north, tmp_path / name) for name in ("copy", "elsewhere")]
    # Another host's name makes another instance as well; here only the file can stand for it.
    (twins[1].home.agent / "instance").unlink()
    live.silos |= {twin.home.root.name: twin for twin in twins}
    for twin in twins:
        twin.agent.start()

    for twin in twins:
        assert twin.agent.wait() == 1
        assert "Silo north is already connected by another agent" in twin.agent.text()
        assert "Stop the other agent of north" in twin.agent.text()
        assert not twin.agent.events("connected")
    assert live.silo("north").connected
    live.start("trial", rounds={"quorum": 1})
    live.until_finished("trial")
    assert not north.agent.events("disconnected")

    live.revoke("north")
    assert north.agent.wait() == 1
    assert "Silo north has been revoked." in north.agent.text()


def twin_of(silo: Silo, folder: Path) -> Silo:
    """The same hospital from a copy of its folder."""
    twin = Silo(silo.name, folder)
    ignore = shutil.ignore_patterns("exchange")
    shutil.copytree(silo.home.root, folder, dirs_exist_ok=True, ignore=ignore)
    return twin


def test_private_data_that_do_not_fit_are_explained_and_nothing_leaves(live: Federation) -> None:
    north, south, west = (live.join(name) for name in NAMES)
    data = south.home.root / "data.csv"
    data.write_text(data.read_text().replace("marker", "remark", 1))
    west.home.settings_file.write_text(
        west.home.settings_file.read_text().replace("data.csv", "lost.csv")
    )
    live.run(north, south, west)
    live.start("trial")
    live.until_voted("trial", "north")
    misfit = south.agent.until("task_delayed", code="DATA_MISMATCH")
    assert "silo.yaml or the data" in misfit["hint"]
    lost = west.agent.until("task_delayed", code="PRIVATE_SIDE_UNREADY")
    # Columns and files are named where the data are: in the trainer's own log.
    for silo, told, named in ((south, misfit, "marker"), (west, lost, "lost.csv")):
        assert named not in told["sentence"] + told["hint"]
        assert "consilium agent check" in told["hint"]
        assert named in silo.agent.text()
    assert live.ballots("trial").keys() == {(1, "north")}
    for silo in (south, west):
        assert {move.kind for move in silo.audit_entries()} <= {Kind.PUBLIC_SET, Kind.APPROVAL}
