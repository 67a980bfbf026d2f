"""Calls a second, calls at once, uploads: what is granted, what is refused, and that nothing piles up."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.api.interceptor import address_of
from coordinator.api.rate_limit import (
    RENEW,
    WATCH,
    Buckets,
    CallLimiter,
    ConcurrentCalls,
    Limits,
    NewestCalls,
    Rate,
)
from coordinator.api.upload import Piece, Upload, measuring
from wire.consilium.v1 import rounds_pb2
from wire.errors import Refusal

CALL = "/consilium.v1.RoundsService/Heartbeat"


class Clock:
    """Seconds as a test tells them."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


class TestBuckets:
    def test_a_burst_is_granted_and_then_the_rate(self, clock: Clock) -> None:
        buckets = Buckets(Rate(per_second=2, burst=3), clock)
        assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
        clock.now += 0.5
        assert [buckets.take("a") for _ in range(2)] == [0, 0.5]

    def test_being_refused_costs_nothing(self, clock: Clock) -> None:
        buckets = Buckets(Rate(per_second=1, burst=1), clock)
        buckets.take("a")
        for _ in range(100):
            assert buckets.take("a") == 1
        clock.now += 1
        assert buckets.take("a") == 0

    def test_callers_do_not_share(self, clock: Clock) -> None:
        buckets = Buckets(Rate(per_second=1, burst=1), clock)
        assert [buckets.take(name) for name in "abc"] == [0, 0, 0]
        assert buckets.take("a") == 1

    def test_memory_is_bounded_and_the_latest_callers_are_kept(self, clock: Clock) -> None:
        buckets = Buckets(Rate(per_second=1, burst=1), clock, most_keys=100)
        for number in range(10_000):
            buckets.take(str(number))
        assert len(buckets) == 100
        assert buckets.take("9999") > 0

    @given(
        st.lists(st.floats(0, 10), max_size=200),
        st.floats(0.1, 100),
        st.integers(1, 50),
    )
    def test_never_more_than_burst_and_rate_allow(
        self, pauses: list[float], per_second: float, burst: int
    ) -> None:
        clock = Clock()
        began = clock.now
        buckets = Buckets(Rate(per_second=per_second, burst=burst), clock)
        granted = 0
        for pause in pauses:
            clock.now += pause
            granted += buckets.take("a") == 0
            assert granted <= burst + (clock.now - began) * per_second + 1e-6


class TestSlots:
    def test_a_caller_has_so_many_places_and_gets_them_back(self) -> None:
        calls = ConcurrentCalls(2)
        with calls.hold("a"), calls.hold("a"):
            with pytest.raises(Refusal, match="2 calls under way"), calls.hold("a"):
                pass
            with calls.hold("b"):
                assert len(calls) == 2
        assert len(calls) == 0
        with calls.hold("a"):
            pass

    def test_an_error_gives_the_place_back(self) -> None:
        calls = ConcurrentCalls(1)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError), calls.hold("a"):
                raise ZeroDivisionError
        assert len(calls) == 0


class TestNewest:
    def test_a_further_one_ends_the_oldest_and_nothing_is_left(self) -> None:
        async def scenario() -> list[str]:
            newest = NewestCalls(2)
            ends: list[str] = []

            async def stay(name: str) -> None:
                try:
                    with newest.hold("a"):
                        await asyncio.Event().wait()
                except Refusal as refusal:
                    ends.append(f"{name} {refusal.code}")
                except asyncio.CancelledError:
                    ends.append(f"{name} cancelled")
                    raise

            tasks = []
            for name in "1234":
                tasks.append(asyncio.create_task(stay(name)))
                await asyncio.sleep(0)
            await asyncio.wait(tasks[:2])
            for task in tasks[2:]:
                task.cancel()
            await asyncio.wait(tasks)
            assert len(newest) == 0
            return ends

        assert asyncio.run(scenario()) == [
            "1 STREAM_REPLACED",
            "2 STREAM_REPLACED",
            "3 cancelled",
            "4 cancelled",
        ]


class TestTurnstile:
    def limits(self) -> Limits:
        return Limits(
            calls=Rate(per_second=10, burst=5),
            renewals=Rate(per_second=1, burst=2),
            enrolment=Rate(per_second=1, burst=3),
            enrolment_total=Rate(per_second=1, burst=4),
            calls_at_once=2,
        )

    def passed(self, call_limiter: CallLimiter, key: str, method: str = CALL) -> str:
        try:
            with call_limiter.passing(key, method):
                return "passed"
        except Refusal as refusal:
            return refusal.sentence

    def test_a_caller_is_told_how_long_to_wait(self, clock: Clock) -> None:
        call_limiter = CallLimiter.for_members(self.limits(), clock)
        told = [self.passed(call_limiter, "a") for _ in range(6)]
        assert told[:5] == ["passed"] * 5
        assert told[5].endswith("the next may come in 0.1 s.")

    def test_certificates_are_scarcer_than_calls(self, clock: Clock) -> None:
        call_limiter = CallLimiter.for_members(self.limits(), clock)
        told = [self.passed(call_limiter, "a", RENEW) for _ in range(3)]
        assert told[:2] == ["passed"] * 2
        assert told[2].endswith("in 1.0 s.")
        assert self.passed(call_limiter, "a") == "passed"

    def test_all_strangers_together_are_limited(self, clock: Clock) -> None:
        call_limiter = CallLimiter.for_enrolment(self.limits(), clock)
        told = [self.passed(call_limiter, f"10.0.0.{number}") for number in range(6)]
        assert told.count("passed") == 4

    def test_a_watch_takes_no_place_of_a_call(self, clock: Clock) -> None:
        async def scenario() -> str:
            call_limiter = CallLimiter.for_members(self.limits(), clock)
            with call_limiter.passing("a", WATCH), call_limiter.passing("a", CALL):
                return self.passed(call_limiter, "a")

        assert asyncio.run(scenario()) == "passed"


class TestUpload:
    async def pieces(self, *sizes: int) -> AsyncIterator[Piece]:
        for size in sizes:
            yield Piece(size, size)

    def read(self, *sizes: int) -> list[int]:
        async def scenario() -> list[int]:
            return [content async for content in Upload(self.pieces(*sizes), silence=60)]

        return asyncio.run(scenario())

    def test_what_our_clients_send_passes(self) -> None:
        sizes = [200, *itertools.repeat(1 << 20, 300), 5]
        assert self.read(*sizes) == sizes
        assert self.read(*[1] * 16) == [1] * 16

    @pytest.mark.parametrize("size", [0, 1, 1000])
    def test_crumbs_are_refused(self, size: int) -> None:
        with pytest.raises(Refusal, match=r"came in 1[78] messages"):
            self.read(*[size] * 1000)

    def test_silence_is_refused(self) -> None:
        async def silent() -> AsyncIterator[Piece]:
            yield Piece(1, "first")
            await asyncio.Event().wait()

        async def scenario() -> None:
            upload = Upload(silent(), silence=0.01)
            assert await upload.only() == "first"
            with pytest.raises(Refusal, match=r"Nothing more of the call arrived for 0\.01 s"):
                await anext(upload)
            # Nothing is left to wait for.
            await upload.hear_out()

        asyncio.run(scenario())

    def test_a_call_without_its_message_is_refused(self) -> None:
        with pytest.raises(Refusal, match="it has no message"):
            asyncio.run(Upload(self.pieces(), silence=60).only())

    def test_what_is_no_protobuf_is_refused_when_it_is_read(self) -> None:
        decode = measuring(rounds_pb2.WatchRequest.FromString)
        assert decode(b"\xff\xff") == Piece(2, None, malformed=True)

        async def one() -> AsyncIterator[Piece]:
            yield decode(b"\xff\xff")

        with pytest.raises(Refusal, match="its bytes are not of the protocol"):
            asyncio.run(Upload(one(), silence=60).only())


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.7:50123", "192.0.2.7"),
        ("ipv6:%5B2001:db8::7%5D:50123", "2001:db8::/64"),
        ("ipv6:[2001:db8::8]:1", "2001:db8::/64"),
        ("ipv6:%5B::ffff:192.0.2.7%5D:9", "192.0.2.7"),
        ("ipv6:%5Bfe80::1%25eth0%5D:9", "fe80::/64"),
        ("unix:/run/x.sock", "unix"),
        ("", ""),
    ],
)
def test_an_address_is_known_without_its_port(peer: str, address: str) -> None:
    assert address_of(peer) == address
