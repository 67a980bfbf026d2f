"""The calls under way, by caller: when a member is shut out or a certificate replaced, its calls end at once.

A call is judged when it begins and when its message is complete; what stays open longer, an upload, a download or a
watch, is ended here. Every replica looks at its own calls whenever any replica announces a change of members, and every
few seconds in case that was lost, or was made on the coordinator's host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import structlog

from coordinator.rounds.change_bus import POLL_SECONDS, ChangeBus
from coordinator.rounds.change_signal import wait_for_any
from coordinator.store import Store
from coordinator.store.actors import Caller
from coordinator.store.executor import StoreExecutor
from wire.errors import Refusal

log = structlog.get_logger()


@dataclass(eq=False)
class OpenCall:
    """A call under way, served in an asyncio task of its own."""

    task: asyncio.Task[Any]
    caller: Caller | None = None
    """Set before the caller is admitted; None where anyone may call."""
    refusal: Refusal | None = None
    """Why it was ended from outside."""


class OpenCalls:
    """The calls of one coordinator."""

    def __init__(self) -> None:
        self._calls: set[OpenCall] = set()

    @contextmanager
    def holding(self) -> Iterator[OpenCall]:
        """The current task is a call until the block ends.

        The refusal with which it is ended leaves the block in place of whatever it was waiting for.
        """
        call = OpenCall(cast("asyncio.Task[Any]", asyncio.current_task()))
        self._calls.add(call)
        try:
            yield call
        except asyncio.CancelledError:
            if call.refusal is None:
                raise
            call.task.uncancel()
            raise call.refusal from None
        finally:
            self._calls.discard(call)

    def callers(self) -> set[Caller]:
        """Everyone with a call under way."""
        return {call.caller for call in self._calls if call.caller is not None}

    def end(self, refusals: Mapping[Caller, Refusal]) -> None:
        """Ends every call of these callers, each with the refusal given."""
        for call in self._calls:
            refusal = None if call.caller is None else refusals.get(call.caller)
            if call.refusal is None and refusal is not None:
                call.refusal = refusal
                call.task.cancel()


async def end_calls_of_outsiders(
    calls: OpenCalls, store: Store, in_store: StoreExecutor, change_bus: ChangeBus
) -> None:
    """Ends the calls of whoever is no longer good, after every change of members; until cancelled."""
    while True:
        waiter = change_bus.members.waiter()
        if callers := calls.callers():
            try:
                refusals = await in_store(store.members.refusals, callers)
            except Exception as error:
                # While the store is away nobody acts either: every transaction asks again.
                log.warning("open_calls_not_judged", kind=type(error).__name__)
                refusals = {}
            for caller, refusal in refusals.items():
                log.info("calls_ended", caller=str(caller), code=refusal.code)
            calls.end(refusals)
        await wait_for_any(waiter, seconds=POLL_SECONDS)
