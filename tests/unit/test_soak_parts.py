"""The soak's own parts: work that notices a lost ballot, a bounded schedule, slopes, relays that fail as asked."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from patience import PATIENCE
from rich.console import Console

from coordinator.consensus import Tally, TieKey, form_consensus, rule_for
from experiments.demo.processes import until
from experiments.soak.ballots import ballot, expected_consensus, silo_name
from experiments.soak.memory import FLAT_MIB, SPAN_ROUNDS, WARM_UP_ROUNDS, Memory, Sample, growth
from experiments.soak.outcome import Outcome
from experiments.soak.processes import Services, SoakFailed
from experiments.soak.relay import Counts, Disruption, SiloRelay
from experiments.soak.schedule import FaultKind, draw
from experiments.soak.view import print_outcome, write_plot
from wire.ballot import digest, pack
from wire.task.definition import TaskDefinition

pytestmark = pytest.mark.slow

SILOS = [silo_name(number) for number in range(20)]


def task(rounds: int) -> TaskDefinition:
    return TaskDefinition.model_validate(
        {
            "name": "soak",
            "public_set": "0" * 64,
            "rows": 500,
            "labels": ["a", "b", "c", "d"],
            "silos": SILOS,
            "rounds": {"max_rounds": rounds, "quorum": len(SILOS)},
        }
    )


class TestBallots:
    def consensus_of(self, voters: Iterable[str]) -> str:
        definition = task(1)
        tally = Tally(definition.shape)
        for silo in voters:
            tally.add(ballot(definition.shape, silo, 1, b""))
        labels = form_consensus(
            tally, rule_for(definition.consensus), TieKey.of(definition.digest, 1)
        )
        return digest(pack(labels, definition.shape))

    def test_the_run_without_faults_counts_every_silo_once(self) -> None:
        assert expected_consensus(task(1)) == [self.consensus_of(SILOS)]

    @pytest.mark.parametrize("silo", SILOS)
    def test_a_ballot_lost_or_counted_twice_changes_the_consensus(self, silo: str) -> None:
        whole = self.consensus_of(SILOS)
        assert self.consensus_of(other for other in SILOS if other != silo) != whole
        assert self.consensus_of([*SILOS, silo]) != whole

    def test_a_ballot_depends_on_silo_round_and_the_consensus_before(self) -> None:
        shape = task(1).shape
        before, other = (pack([label] * shape.rows, shape) for label in (0, 1))
        ballots = {
            ballot(shape, "silo-00", 2, before),
            ballot(shape, "silo-01", 2, before),
            ballot(shape, "silo-00", 3, before),
            ballot(shape, "silo-00", 2, other),
        }
        assert len(ballots) == 4
        assert ballot(shape, "silo-00", 2, before) in ballots

    def test_the_consensus_never_settles(self) -> None:
        digests = expected_consensus(task(30))
        assert len(set(digests)) == 30


class TestSchedule:
    def test_the_seed_decides(self) -> None:
        assert draw(20, 200, 1) == draw(20, 200, 1)
        assert draw(20, 200, 1) != draw(20, 200, 2)

    @pytest.mark.parametrize("seed", range(5))
    def test_every_kind_comes_and_none_without_bounds(self, seed: int) -> None:
        counts = draw(20, 200, seed).counts
        assert counts == {
            FaultKind.AGENT: 60,
            FaultKind.TRAINERS: 5,
            FaultKind.COORDINATOR: 3,
            FaultKind.RESET: 50,
            FaultKind.STALL: 20,
            FaultKind.BLACKHOLE: 20,
            FaultKind.SLOW: 20,
        }

    @pytest.mark.parametrize(("silos", "rounds"), [(20, 200), (3, 6), (2, 3)])
    def test_faults_leave_the_first_and_the_last_round_alone(self, silos: int, rounds: int) -> None:
        faults = draw(silos, rounds, 7).faults
        assert all(1 < fault.round < rounds for fault in faults)
        assert all(fault.silo is None or fault.silo < silos for fault in faults)
        assert {fault.kind for fault in faults} == set(FaultKind)

    @pytest.mark.parametrize("seed", range(20))
    def test_some_processes_live_long_enough_to_show_a_leak(self, seed: int) -> None:
        faults = draw(20, 200, seed).faults
        killed = {fault.silo for fault in faults if fault.kind is FaultKind.AGENT}
        assert killed.isdisjoint({3, 7, 11, 15, 19})
        deaths = [fault.round for fault in faults if fault.kind is FaultKind.COORDINATOR]
        lives = [after - before for before, after in pairwise([0, *deaths, 200])]
        assert max(lives) >= WARM_UP_ROUNDS + SPAN_ROUNDS


def samples(process: str, life: int, first: int, memory: Iterable[float]) -> list[Sample]:
    return [Sample(process, life, number, mib) for number, mib in enumerate(memory, first)]


class TestGrowth:
    def test_a_leak_is_found_and_measured(self) -> None:
        leaking = samples("a", 1, 0, (80 + 0.05 * number for number in range(150)))
        found = growth(leaking)
        assert found.slope == pytest.approx(0.05)
        assert found.over(200) == pytest.approx(10)
        assert found.flat(200) is False

    def test_what_is_taken_once_is_no_leak(self) -> None:
        warm = [50 + min(number, WARM_UP_ROUNDS) for number in range(150)]
        found = growth(samples("a", 1, 0, warm))
        assert found.slope == pytest.approx(0)
        assert found.flat(200) is True
        assert found.mib == 50 + WARM_UP_ROUNDS

    def test_lives_at_different_levels_are_no_growth(self) -> None:
        lives = [
            *samples("a", 1, 0, [60.0] * 120),
            *samples("a", 2, 120, [90.0] * 120),
            *samples("b", 1, 0, [70.0] * 240),
        ]
        found = growth(lives)
        assert found.slope == pytest.approx(0)
        assert (found.lives, found.longest) == (3, 239 - WARM_UP_ROUNDS)

    def test_one_leaking_process_among_many_is_named_by_the_steepest(self) -> None:
        many = [s for n in range(9) for s in samples(f"{n}", 1, 0, [80.0] * 150)]
        leaking = samples("leak", 1, 0, (80 + 0.1 * number for number in range(150)))
        found = growth([*many, *leaking])
        assert found.steepest == pytest.approx(0.1)
        assert found.slope == pytest.approx(0.01)

    def test_short_lives_say_nothing(self) -> None:
        rounds = range(WARM_UP_ROUNDS + SPAN_ROUNDS)
        short = samples("a", 1, 0, (float(number) for number in rounds))
        found = growth(short)
        assert (found.slope, found.over(200), found.flat(200)) == (None, None, None)

    def test_the_limit_is_for_all_rounds_together(self) -> None:
        slope = FLAT_MIB / 200
        for factor, flat in ((0.9, True), (1.1, False)):
            line = (80 + factor * slope * number for number in range(150))
            assert growth(samples("a", 1, 0, line)).flat(200) is flat


def outcome(**changes: object) -> Outcome:
    """A soak of 2 silos and 200 rounds that went well."""
    digests = tuple(f"{number:064x}" for number in range(200))
    memory = Memory(
        [
            *samples("coordinator", 1, 0, [150.0] * 200),
            *samples("silo-00-agent", 1, 0, [80.0] * 200),
        ]
    )
    good = Outcome(
        silos=2,
        rounds=200,
        seed=1,
        seconds=60.0,
        faults={FaultKind.AGENT: 3},
        memory=memory,
        agents=("silo-00-agent", "silo-01-agent"),
        consensus=digests,
        expected=digests,
        complete=True,
        coordinator_record_whole=True,
        coordinator_record_entries=900,
        silo_records_whole=2,
        ballots_proven=400,
        ballots_without_receipt=0,
        ballots_sent_again=7,
        reconnects=5,
        stopped_when_asked=2,
        connections=9,
        resets=4,
        relayed_bytes=10_000,
    )
    return replace(good, **changes)  # type: ignore[arg-type]


def leaking(process: str) -> Memory:
    return Memory(samples(process, 1, 0, (80 + 0.1 * number for number in range(200))))


class TestOutcome:
    def test_a_soak_without_loss_keeps_every_promise(self) -> None:
        assert outcome().kept
        assert set(outcome().promises.values()) == {True}

    @pytest.mark.parametrize(
        ("changes", "broken"),
        [
            ({"consensus": ("0" * 64,) * 200}, "consensus"),
            ({"consensus": ()}, "consensus"),
            ({"complete": False}, "counted every silo"),
            ({"coordinator_record_whole": False}, "coordinator's audit"),
            ({"silo_records_whole": 1}, "silo's audit"),
            ({"ballots_proven": 399}, "receipt"),
            ({"ballots_without_receipt": 1}, "receipt"),
            ({"stopped_when_asked": 1}, "stops"),
            ({"memory": leaking("coordinator")}, "memory of coordinator"),
            ({"memory": leaking("silo-01-agent")}, "memory of agents"),
        ],
    )
    def test_each_loss_breaks_its_promise(self, changes: dict[str, object], broken: str) -> None:
        lossy = outcome(**changes)
        assert not lossy.kept
        (promise,) = [name for name, held in lossy.promises.items() if held is False]
        assert broken in promise

    def test_the_first_round_that_differs_is_named(self) -> None:
        digests = outcome().consensus
        assert outcome().first_difference is None
        assert outcome(consensus=(*digests[:6], "f" * 64, *digests[7:])).first_difference == 7
        assert outcome(consensus=digests[:10]).first_difference == 11

    def test_the_report_has_slopes_promises_and_a_plot_of_every_life(self, tmp_path: Path) -> None:
        told = outcome(memory=leaking("coordinator"))
        numbers = json.loads(json.dumps(told.as_json()))
        assert numbers["memory"]["coordinator"]["mib_over_all_rounds"] == pytest.approx(20)
        assert numbers["faults"]["agent killed"] == 3
        text = io.StringIO()
        print_outcome(told, Console(file=text, width=200))
        assert "slope +102.4 KiB per round" in text.getvalue()
        assert "broken  memory of coordinator is flat (< 4 MiB over all rounds)" in text.getvalue()
        assert "too short to tell  memory of agents" in text.getvalue()
        write_plot(told, tmp_path / "memory.svg")
        assert "<svg" in (tmp_path / "memory.svg").read_text()


class TestServices:
    def test_a_killed_service_lives_again_and_all_end_with_the_block(self, tmp_path: Path) -> None:
        async def scenario() -> list[int | None]:
            async with Services(tmp_path) as services:
                service = services.serve("sleeper", "-c", "import time; time.sleep(600)")
                pids = [service.pid]
                await asyncio.gather(service.kill_and_restart(0), service.kill_and_restart(0))
                service.check()
                assert service.life == 3
                return [*pids, service.pid]

        first, last = asyncio.run(scenario())
        assert first != last
        assert not any(Path(f"/proc/{pid}").exists() for pid in (first, last))

    def test_a_service_that_ends_by_itself_is_quoted(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            async with Services(tmp_path) as services:
                service = services.serve("quitter", "-c", "print('no more'); raise SystemExit(3)")
                await until(lambda: "no more" in service.log.read_text())
                await until(lambda: _zombie(service.pid))
                service.check()

        with pytest.raises(SoakFailed, match="quitter ended by itself with status 3") as caught:
            asyncio.run(asyncio.wait_for(scenario(), PATIENCE))
        assert "no more" in caught.value.sentence


def _zombie(pid: int | None) -> bool:
    return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def echoing() -> AsyncIterator[tuple[SiloRelay, Callable[[], Awaitable[Streams]]]]:
    """A relay to a server that sends everything back, and how to open a connection over it."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(100):
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    relay = SiloRelay(server.sockets[0].getsockname()[1], Counts())
    listening = await asyncio.start_server(relay.relay, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    opened: list[asyncio.StreamWriter] = []

    async def dial() -> Streams:
        streams = await asyncio.open_connection("127.0.0.1", port)
        opened.append(streams[1])
        return streams

    yield relay, dial
    for writer in opened:
        writer.close()
    listening.close()
    server.close()


async def said(streams: Streams, word: bytes) -> bytes:
    reader, writer = streams
    writer.write(word)
    return await asyncio.wait_for(reader.readexactly(len(word)), PATIENCE)


class TestRelay:
    def test_carry_both_ways_and_count(self) -> None:
        async def scenario() -> Counts:
            async with echoing() as (relay, dial):
                assert await said(await dial(), b"hello") == b"hello"
                return relay.counts

        assert vars(asyncio.run(scenario())) == {"connections": 1, "resets": 0, "bytes": 10}

    def test_a_reset_ends_open_connections_and_lets_new_ones_through(self) -> None:
        async def scenario() -> None:
            async with echoing() as (relay, dial):
                streams = await dial()
                await said(streams, b"hello")
                await relay.apply(Disruption.RESET, 0)
                with pytest.raises(ConnectionResetError):
                    await asyncio.wait_for(streams[0].read(1), PATIENCE)
                assert await said(await dial(), b"again") == b"again"
                assert relay.counts.resets == 2

        asyncio.run(scenario())

    @pytest.mark.parametrize(
        ("disruption", "outcome"),
        [(Disruption.STALL, b"hush"), (Disruption.BLACKHOLE, ConnectionResetError)],
    )
    def test_nothing_passes_a_silent_line_until_it_speaks_or_is_reset(
        self, disruption: Disruption, outcome: object
    ) -> None:
        async def scenario() -> object:
            async with echoing() as (relay, dial):
                streams = await dial()
                await said(streams, b"hello")
                answer = asyncio.create_task(said(streams, b"hush"))
                late = asyncio.create_task(dial())
                await relay.apply(disruption, 0.2)
                assert not answer.done(), "the answer waits for the end of the silence"
                await late
                try:
                    return await answer
                except ConnectionResetError as error:
                    return type(error)

        assert asyncio.run(scenario()) == outcome

    def test_a_slow_line_loses_nothing_and_keeps_the_order(self) -> None:
        async def scenario() -> bytes:
            async with echoing() as (relay, dial):
                streams = await dial()
                slow = asyncio.create_task(relay.apply(Disruption.SLOW, 0.2))
                words = b"".join([await said(streams, word) for word in (b"one ", b"two")])
                await slow
                return words

        assert asyncio.run(scenario()) == b"one two"

    def test_without_a_coordinator_a_connection_is_closed(self) -> None:
        async def scenario() -> None:
            async with echoing() as (relay, dial):
                relay.coordinator = 1
                reader, _ = await dial()
                assert await asyncio.wait_for(reader.read(1), PATIENCE) == b""

        asyncio.run(scenario())
