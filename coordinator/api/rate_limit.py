"""Rate limits by caller: calls a second (token buckets), and calls at the same time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

from coordinator.settings import Limits, Rate
from wire.errors import RATE_LIMITED, STREAM_REPLACED, TOO_MANY_CALLS, Refusal

Clock = Callable[[], float]

# More callers than any consortium has; beyond it the least recent one is forgotten.
_MOST_KEYS = 10_000
RENEW: Final = "/consilium.v1.IdentityService/Renew"
WATCH: Final = "/consilium.v1.RoundsService/Watch"
EVERYONE: Final = "everyone"


LOG_LINES: Final = Rate(per_second=1, burst=100)
"""Log lines of one caller or one cause: a flood of calls must not become a flood of lines."""


class Buckets:
    """Token buckets, one per key. `clock` counts seconds and never goes back."""

    def __init__(self, rate: Rate, clock: Clock, most_keys: int = _MOST_KEYS) -> None:
        self._rate = rate
        self._clock = clock
        self._most_keys = most_keys
        # Key to tokens left and when they were counted, least recently used first.
        self._held: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def take(self, key: str) -> float:
        """Takes a token; 0 if there was one, else the seconds until there will be."""
        now = self._clock()
        tokens, counted = self._held.pop(key, (float(self._rate.burst), now))
        tokens = min(self._rate.burst, tokens + (now - counted) * self._rate.per_second)
        granted = tokens >= 1
        self._held[key] = (tokens - granted, now)
        if len(self._held) > self._most_keys:
            self._held.popitem(last=False)
        return 0.0 if granted else (1 - tokens) / self._rate.per_second


class ConcurrentCalls:
    """Limits calls at the same time to `most` per key; a key without calls takes no memory."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._taken)

    @contextmanager
    def hold(self, key: str) -> Iterator[None]:
        """Counts a call for the block; TOO_MANY_CALLS if there are `most` already."""
        taken = self._taken.get(key, 0)
        if taken >= self._most:
            raise Refusal(TOO_MANY_CALLS, most=self._most)
        self._taken[key] = taken + 1
        try:
            yield
        finally:
            self._taken[key] -= 1
            if not self._taken[key]:
                del self._taken[key]


class NewestCalls:
    """Keeps the newest `most` calls per key: one more ends the oldest, whose connection may be dead."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: dict[str, list[asyncio.Task[Any]]] = {}
        self._replaced: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    @contextmanager
    def hold(self, key: str) -> Iterator[None]:
        """Counts the current task for the block; STREAM_REPLACED ends it when newer ones came."""
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        running = self._running.setdefault(key, [])
        running.append(task)
        if len(running) > self._most:
            oldest = running.pop(0)
            self._replaced.add(oldest)
            oldest.cancel()
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._replaced:
                raise
            task.uncancel()
            raise Refusal(STREAM_REPLACED) from None
        finally:
            self._replaced.discard(task)
            if task in running:
                running.remove(task)
            if not running and self._running.get(key) is running:
                del self._running[key]


class CallLimiter:
    """Asked before anything of a call is read: may this caller make another one now?"""

    def __init__(
        self,
        clock: Clock,
        each: Rate,
        total: Rate | None,
        by_method: Mapping[str, Rate],
        at_once: int,
        watches: int,
    ) -> None:
        self._each = Buckets(each, clock)
        self._total = Buckets(total, clock) if total else None
        self._by_method = {method: Buckets(rate, clock) for method, rate in by_method.items()}
        self._concurrent = ConcurrentCalls(at_once)
        self._watches = NewestCalls(watches)

    @classmethod
    def for_members(cls, limits: Limits, clock: Clock) -> CallLimiter:
        """For the port where callers show certificates; a key is one certificate, or one member."""
        by_method = {RENEW: limits.renewals}
        return cls(
            clock, limits.calls, None, by_method, limits.calls_at_once, limits.watches_at_once
        )

    @classmethod
    def for_enrolment(cls, limits: Limits, clock: Clock) -> CallLimiter:
        """For the enrolment port; a key is an address."""
        total = limits.enrolment_total
        return cls(clock, limits.enrolment, total, {}, limits.calls_at_once, limits.watches_at_once)

    @contextmanager
    def passing(self, key: str, method: str) -> Iterator[None]:
        """Counts a call while it lasts; RATE_LIMITED or TOO_MANY_CALLS if it is one too many."""
        wait = self._each.take(key)
        if not wait and method in self._by_method:
            wait = self._by_method[method].take(key)
        if not wait and self._total is not None:
            wait = self._total.take(EVERYONE)
        if wait:
            raise Refusal(RATE_LIMITED, seconds=f"{wait:.1f}" if wait >= 0.1 else "0.1")
        limit: ConcurrentCalls | NewestCalls = (
            self._watches if method == WATCH else self._concurrent
        )
        with limit.hold(key):
            yield
