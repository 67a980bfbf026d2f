"""How much one caller may ask of the coordinator: calls a second, and calls under way at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final, cast

from pydantic import BaseModel, ConfigDict, Field

from wire.errors import RATE_LIMITED, STREAM_REPLACED, TOO_MANY_CALLS, Refusal
from wire.extractor_file import MAX_BYTES
from wire.task import Seconds

Clock = Callable[[], float]

# More callers than any consortium has; beyond it the one unheard for longest is forgotten.
_REMEMBERED = 10_000
RENEW: Final = "/consilium.v1.IdentityService/Renew"
WATCH: Final = "/consilium.v1.RoundsService/Watch"
EVERYONE: Final = "everyone"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Rate(_Frozen):
    """A token bucket: `burst` calls at once, then `per_second`."""

    per_second: Annotated[float, Field(gt=0)]
    burst: Annotated[int, Field(ge=1)]


class Limits(_Frozen):
    """`limits` of coordinator.yaml."""

    calls: Rate = Rate(per_second=100, burst=400)
    """Calls of one member."""
    renewals: Rate = Rate(per_second=1, burst=20)
    """Certificates one member may ask for: each is signed, stored and audited."""
    enrolment: Rate = Rate(per_second=5, burst=20)
    """Calls of one address on the enrolment port; everyone behind one proxy is one address."""
    enrolment_total: Rate = Rate(per_second=50, burst=200)
    """Calls of all addresses together on the enrolment port."""
    calls_at_once: Annotated[int, Field(ge=1)] = 32
    """Calls and streams of one caller under way at once."""
    watches_at_once: Annotated[int, Field(ge=1)] = 3
    """Watch streams of one silo; a further one ends its oldest."""
    silence: Seconds = 60.0
    """How long an upload may pause, and how often a quiet connection is asked for a sign of life."""
    handshake: Seconds = 20.0
    """How long a TLS handshake may take."""
    extractor_bytes: Annotated[int, Field(ge=1, le=MAX_BYTES)] = 64 << 20
    """Size of an extractor at most."""


LOG_LINES: Final = Rate(per_second=1, burst=100)
"""Of one caller or one cause: a flood of calls must not become a flood of lines."""


class Buckets:
    """One bucket per key. `clock` counts seconds and never goes back."""

    def __init__(self, rate: Rate, clock: Clock, remembered: int = _REMEMBERED) -> None:
        self._rate = rate
        self._clock = clock
        self._remembered = remembered
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
        if len(self._held) > self._remembered:
            self._held.popitem(last=False)
        return 0.0 if granted else (1 - tokens) / self._rate.per_second


class Slots:
    """Calls under way by key, at most `most` each; a key without calls takes no memory."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._taken)

    @contextmanager
    def hold(self, key: str) -> Iterator[None]:
        """Occupies a slot for the block; TOO_MANY_CALLS if none is free."""
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


class Newest:
    """Calls under way by key: a new one beyond `most` ends the oldest, which may be of a dead connection."""

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


class Turnstile:
    """Asked before anything of a call is read: may this caller make another one now?"""

    def __init__(
        self,
        clock: Clock,
        each: Rate,
        total: Rate | None,
        scarce: Mapping[str, Rate],
        at_once: int,
        watches: int,
    ) -> None:
        self._each = Buckets(each, clock)
        self._total = Buckets(total, clock) if total else None
        self._scarce = {method: Buckets(rate, clock) for method, rate in scarce.items()}
        self._slots = Slots(at_once)
        self._watches = Newest(watches)

    @classmethod
    def for_members(cls, limits: Limits, clock: Clock) -> Turnstile:
        """For the port where callers show certificates; a key is one certificate."""
        scarce = {RENEW: limits.renewals}
        return cls(clock, limits.calls, None, scarce, limits.calls_at_once, limits.watches_at_once)

    @classmethod
    def for_strangers(cls, limits: Limits, clock: Clock) -> Turnstile:
        """For the enrolment port; a key is an address."""
        total = limits.enrolment_total
        return cls(clock, limits.enrolment, total, {}, limits.calls_at_once, limits.watches_at_once)

    @contextmanager
    def passing(self, key: str, method: str) -> Iterator[None]:
        """Counts a call while it lasts; RATE_LIMITED or TOO_MANY_CALLS if it is one too many."""
        wait = self._each.take(key)
        if not wait and method in self._scarce:
            wait = self._scarce[method].take(key)
        if not wait and self._total is not None:
            wait = self._total.take(EVERYONE)
        if wait:
            raise Refusal(RATE_LIMITED, seconds=f"{wait:.1f}" if wait >= 0.1 else "0.1")
        places: Slots | Newest = self._watches if method == WATCH else self._slots
        with places.hold(key):
            yield
