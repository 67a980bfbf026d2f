"""Several coordinators on one PostgreSQL: any takes any call, one closes a round, all hear of it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgres import PostgresServer
from replicas import (
    LABELS,
    ROWS,
    Process,
    Replica,
    Voter,
    consilium,
    definition,
    eventually,
    further_replica,
    publish_points,
    replicas,
    scripted_ballot,
    start_task,
    token_from,
    voters,
)
from sqlalchemy import make_url

from coordinator.round_engine import ClosedBy
from coordinator.rounds.close import RoundCloser
from coordinator.server import utc_now
from coordinator.store import Store
from coordinator.store.actors import INIT, Caller
from coordinator.store.executor import StoreExecutor
from coordinator.store.records import BallotRecord, IssuedCertificate
from wire.ballot import digest
from wire.consilium.v1 import admin_pb2
from wire.errors import CONTENT_MISSING, SILO_SUSPENDED, STORE_UNAVAILABLE, Refusal
from wire.identity.identity import Identity, Role
from wire.public_file import PublicSetFolder
from wire.task.definition import TaskDefinition

CRASH_POINTS = ["closing-decided", "closing-begun", "consensus-formed", "consensus-published"]
ROUNDS = 3


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    url = postgres.fresh_url()
    yield url
    postgres.drop(url)


@pytest.fixture
def pair(tmp_path: Path, database: str) -> Iterator[tuple[Replica, Replica]]:
    with replicas(tmp_path, database) as both:
        yield both


def undisturbed(folder: Path, state: TaskDefinition, silos: list[str]) -> list[str]:
    """Digest of each round's consensus if nothing happens: one store, one thread, on SQLite."""
    store = Store(f"sqlite:///{folder / 'undisturbed.db'}")
    in_store, now = StoreExecutor(), utc_now()
    closer = RoundCloser(store, in_store, lambda: now)
    for silo in silos:
        certificate = IssuedCertificate(silo, silo, now)
        store.members.adopt(Role.SILO, silo, silo, certificate, now)
    store.public_sets.add("points", state.public_set, ROWS, 1, {}, now, INIT)
    store.tasks.create(state, now, INIT)
    task = store.tasks.start(state.name, now, INIT)
    while task.open_round is not None:
        number = task.open_round.number
        for silo in silos:
            ballot = scripted_ballot(silo, number, state)
            record = BallotRecord(
                state.name, number, silo, digest(ballot), now, "", b"", already_held=False
            )
            by = Caller(Identity("hospitals", Role.SILO, silo), silo)
            store.ballots.accept(by, record, ballot)
        after = closer.close(task, task.open_round, ClosedBy.EVERYONE)
        assert after is not None
        task = after
    digests = [closed.digest for closed in store.tasks.history(state.name)]
    in_store.close()
    store.close()
    return digests


def stored(postgres: PostgresServer, url: str, query: str) -> list[tuple[Any, ...]]:
    """Rows as they lie in the database, read past the store."""
    database = make_url(url).database or ""
    with psycopg.connect(postgres.conninfo(database)) as connection:
        return connection.execute(query).fetchall()


async def finish_rounds(silos: dict[str, Voter], first: int) -> None:
    """Everyone votes in every round from `first` on, all at once."""
    for number in range(first, ROUNDS + 1):
        for voter in silos.values():
            await voter.until_open(number)
        await asyncio.gather(*(voter.cast(number) for voter in silos.values()))
    for voter in silos.values():
        await voter.until_finished()


def check_outcome(
    postgres: PostgresServer, url: str, folder: Path, silos: dict[str, Voter]
) -> None:
    """One consensus per round, the one that was to be expected, heard by everyone, recorded once."""
    some = next(iter(silos.values()))
    task = TaskDefinition.from_proto(some.state.definition)
    expected = undisturbed(folder, task, sorted(silos))
    rows = "SELECT number, consensus_digest, ballots FROM rounds ORDER BY number"
    assert stored(postgres, url, rows) == [
        (number, found, len(silos)) for number, found in enumerate(expected, start=1)
    ]
    published = (
        "SELECT (details->>'round')::int, details->>'digest' FROM audit "
        "WHERE act = 'consensus_published' ORDER BY sequence"
    )
    assert stored(postgres, url, published) == list(enumerate(expected, start=1))
    accepted = "SELECT count(*) FROM audit WHERE act = 'ballot_accepted'"
    assert stored(postgres, url, accepted) == [(ROUNDS * len(silos),)]
    for voter in silos.values():
        assert voter.heard[ROUNDS] == expected[-1]
        assert voter.heard.items() <= dict(enumerate(expected, start=1)).items()


def test_real_agents_on_two_replicas_hold_rounds_together(
    pair: tuple[Replica, Replica], postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    one, other = pair
    one.serve()
    other.serve()
    publish_points(one)
    with ExitStack() as stack:
        agents: list[Process] = []
        for number, replica in enumerate((one, one, other, other)):
            home = tmp_path / f"silo{number}"
            token = asyncio.run(token_from(replica, home.name))
            consilium("agent", "join", token, "--home", home)
            rows = [f"{a},{b},{LABELS[(a + b) % 3]}" for a in range(6) for b in range(number, 6)]
            (home / "data.csv").write_text("\n".join(["a,b,state", *rows]) + "\n")
            (home / "silo.yaml").write_text(
                "data: {path: data.csv, label: state}\nmodel: decision_tree\nseed: 1\n"
                "policy: {approve: within_limits, max_rounds: 5}\n"
            )
            agent = Process(home.with_suffix(".log"), "agent", "run", "--home", home)
            stack.callback(agent.end)
            agent.start(OMP_NUM_THREADS="1")
            agents.append(agent)
        for agent in agents:
            eventually("a connected agent", partial(agent.events, "connected"))
        asyncio.run(start_task(other, definition(ROUNDS)))
        for agent in agents:
            eventually("a finished task", partial(agent.events, "task_finished"))
        for agent, replica in zip(agents, (one, one, other, other), strict=True):
            address = f"localhost:{replica.ports[0]}"
            assert {event["coordinator"] for event in agent.events("connected")} == {address}
        counted = "SELECT ballots FROM rounds ORDER BY number"
        assert stored(postgres, database, counted) == [(4,)] * ROUNDS
        assert one.rounds_closed() + other.rounds_closed() == ROUNDS
        assert "ok" in consilium("audit", "verify", "--home", other.home)
    for replica in pair:
        replica.signal(signal.SIGTERM)
        assert replica.wait() == 0


def test_rounds_close_once_however_the_votes_come_in(
    pair: tuple[Replica, Replica], postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    one, other = pair
    one.serve()
    other.serve()
    publish_points(other)

    async def scene() -> None:
        async with voters(a=one, b=other, c=one, d=other) as silos:
            await start_task(one, definition(ROUNDS))
            await finish_rounds(silos, first=1)
            check_outcome(postgres, database, tmp_path, silos)
            # Nobody missed a round: changes were announced in time, not only in the end.
            assert [sorted(voter.heard) for voter in silos.values()] == [[1, 2, 3]] * 4

    asyncio.run(scene())
    assert one.rounds_closed() + other.rounds_closed() == ROUNDS


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_replica_killed_while_it_closes_a_round_changes_nothing(
    pair: tuple[Replica, Replica],
    postgres: PostgresServer,
    database: str,
    tmp_path: Path,
    point: str,
) -> None:
    doomed, survivor = pair
    doomed.serve(crash_at=point)
    survivor.serve()
    publish_points(survivor)

    async def scene() -> None:
        async with voters(a=doomed, b=survivor, c=survivor, d=doomed) as silos:
            await start_task(survivor, definition(ROUNDS))
            for voter in silos.values():
                await voter.until_open(1)
            for name in ("a", "b", "c"):
                await silos[name].cast(1)
            # Frozen, so that the other one gets to close the round.
            survivor.signal(signal.SIGSTOP)
            last = asyncio.create_task(silos["d"].cast(1))
            assert await asyncio.to_thread(doomed.wait) == -signal.SIGKILL
            begun = point != "closing-decided"
            closed = point == "consensus-published"
            row = "SELECT closing IS NOT NULL, consensus IS NOT NULL FROM rounds WHERE number = 1"
            assert stored(postgres, database, row) == [(begun, closed)]
            survivor.signal(signal.SIGCONT)
            # The survivor finishes alone, and those who watch it hear of it.
            for name in ("b", "c"):
                await silos[name].until_open(2)
            doomed.serve()
            await last
            await finish_rounds(silos, first=2)
            check_outcome(postgres, database, tmp_path, silos)

    asyncio.run(scene())
    assert survivor.rounds_closed() + doomed.rounds_closed() == ROUNDS - (
        1 if point == "consensus-published" else 0
    )


def test_a_silo_shut_out_at_one_replica_is_cut_off_at_the_other(
    pair: tuple[Replica, Replica],
) -> None:
    one, other = pair
    one.serve()
    other.serve()

    async def scene() -> None:
        async with voters(a=other) as silos:
            suspend = admin_pb2.SuspendSiloRequest(name="a")
            await one.admin(lambda link: link.admin.SuspendSilo(suspend))
            await silos["a"].until_told(SILO_SUSPENDED.code)

    asyncio.run(scene())


def test_a_database_that_goes_away_and_comes_back_needs_no_restart(
    tmp_path: Path, own_postgres: PostgresServer
) -> None:
    url = own_postgres.fresh_url()
    with replicas(tmp_path, url) as (one, other):
        one.serve()
        other.serve()
        publish_points(one)

        async def scene() -> None:
            async with voters(a=one, b=other) as silos:
                await start_task(one, definition(ROUNDS))
                await silos["a"].until_open(1)
                await silos["b"].until_open(1)
                await silos["a"].cast(1)
                await asyncio.to_thread(own_postgres.stop)
                listing = admin_pb2.ListTasksRequest()
                for replica in (one, other):
                    with pytest.raises(Refusal) as caught:
                        await replica.admin(lambda link: link.admin.ListTasks(listing))
                    assert caught.value.is_a(STORE_UNAVAILABLE)
                vote = asyncio.create_task(silos["b"].cast(1))
                await silos["b"].until_told(STORE_UNAVAILABLE.code)
                own_postgres.start()
                await vote
                await finish_rounds(silos, first=2)
                check_outcome(own_postgres, url, tmp_path, silos)

        asyncio.run(scene())
        assert not one.ended()
        assert not other.ended()
        # Replicas listen to each other again, too.
        assert all(len(replica.events("change_listen_connected")) == 2 for replica in (one, other))


def test_a_replica_without_the_file_of_a_public_set_says_so(
    pair: tuple[Replica, Replica], tmp_path: Path
) -> None:
    one, other = pair
    one.serve()
    publish_points(one)
    (other.home / "public-sets").unlink()
    other.serve()
    (missing,) = other.events("public_set_missing")
    assert (missing["name"], missing["version"]) == ("points", 1)

    async def scene() -> None:
        async with voters(a=other) as silos:
            link = silos["a"].link
            public = await link.public_set("points")
            folder = PublicSetFolder(tmp_path / "fetched")
            with pytest.raises(Refusal, match="points@1") as caught:
                await link.download(public, folder)
            assert caught.value.is_a(CONTENT_MISSING)
            # Publishing the same file once more, at this replica, is the cure.
            await asyncio.to_thread(publish_points, other)
            await link.download(public, folder)
            assert folder.has(public.digest)

    asyncio.run(scene())


def test_init_refuses_a_database_that_holds_a_consortium_and_leaves_no_folder_half_made(
    pair: tuple[Replica, Replica], database: str, tmp_path: Path
) -> None:
    second = tmp_path / "second"
    said = consilium("coordinator", "init", "--home", second, "--database", database, status=1)
    assert "already holds a consortium" in said
    gone = database.replace("/test", "/nowhere")
    said = consilium("coordinator", "init", "--home", second, "--database", gone, status=1)
    assert "cannot be used" in said
    assert [path.name for path in second.iterdir()] == [".lock"]


def test_many_replicas_may_start_at_once(pair: tuple[Replica, Replica]) -> None:
    one, other = pair
    third = further_replica(one, 3)
    try:
        for replica in (one, other, third):
            replica.start()
        for replica in (one, other, third):
            eventually("a serving replica", partial(replica.events, "coordinator_ready"))
    finally:
        third.end()
