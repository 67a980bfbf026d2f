"""How operations on the store and GPUs in use are counted."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from coordinator.metrics.store_operations import StoreMetrics
from coordinator.store.executor import StoreExecutor
from silo_agent.trainer.models import gpu
from silo_agent.trainer.training_report import reported
from wire.errors import STORE_UNAVAILABLE, TASK_UNKNOWN, Refusal

pytestmark = pytest.mark.slow


class Tasks:
    """A store whose operations end in every way there is."""

    def get(self, name: str) -> str:
        return name

    def refuse(self) -> None:
        raise Refusal(TASK_UNKNOWN, task="flu")

    def be_away(self) -> None:
        raise Refusal(STORE_UNAVAILABLE)

    def fail(self) -> None:
        raise ValueError


def after(*calls: Callable[[], Any]) -> CollectorRegistry:
    """The registry once these operations were made, one after the other."""
    registry = CollectorRegistry()

    async def make() -> None:
        in_store = StoreExecutor(observer=StoreMetrics(registry))
        for call in calls:
            with suppress(Refusal, ValueError):
                await in_store(call)
        in_store.close()

    asyncio.run(make())
    return registry


class TestStore:
    def test_operations_are_counted_by_what_became_of_them(self) -> None:
        store = Tasks()
        registry = after(store.refuse, store.be_away, store.fail)
        for name, outcome in (
            ("refuse", "refused"),
            ("be_away", "unavailable"),
            ("fail", "failed"),
        ):
            labels = {"operation": f"Tasks.{name}", "outcome": outcome}
            assert registry.get_sample_value("consilium_store_operations_total", labels) == 1

    def test_names_are_those_of_the_code_and_durations_are_taken(self) -> None:
        def local() -> None:
            pass

        registry = after(lambda: Tasks().get("flu"), local, local)
        done = {"operation": "local", "outcome": "done"}
        assert registry.get_sample_value("consilium_store_operations_total", done) == 2
        taken = registry.get_sample_value(
            "consilium_store_operation_seconds_count", {"operation": "local"}
        )
        waited = registry.get_sample_value("consilium_store_waiting_seconds_count")
        assert (taken, waited) == (2, 3)

    def test_waiting_for_others_is_not_the_operations_own_time(self) -> None:
        registry = CollectorRegistry()
        with StoreMetrics(registry).measure(Tasks().get, perf_counter() - 1000):
            pass
        waited = registry.get_sample_value("consilium_store_waiting_seconds_sum")
        own = registry.get_sample_value(
            "consilium_store_operation_seconds_sum", {"operation": "Tasks.get"}
        )
        assert waited is not None
        assert own is not None
        assert waited >= 1000 > own


class Driver:
    """A CUDA driver with two devices, of which this process uses some."""

    def __init__(self, used: set[int], status: int = 0) -> None:
        self._used = used
        self._status = status

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = 2
        return self._status

    def cuDevicePrimaryCtxGetState(self, device: int, flags: Any, active: Any) -> int:
        active._obj.value = int(device in self._used)
        return 0


class TestGpus:
    @pytest.mark.parametrize(("used", "count"), [(set(), 0), ({1}, 1), ({0, 1}, 2)])
    def test_those_with_a_context_of_this_process_are_in_use(
        self, monkeypatch: pytest.MonkeyPatch, used: set[int], count: int
    ) -> None:
        modes: list[int] = []

        def load(name: str, mode: int = 0) -> Driver:
            modes.append(mode)
            return Driver(used)

        monkeypatch.setattr(ctypes, "CDLL", load)
        assert gpu.gpus_in_use() == count
        # A driver is not loaded in order to see that nobody has.
        assert modes == [os.RTLD_NOLOAD]
        assert gpu.cuda_devices() == 2

    def test_a_driver_that_was_never_started_counts_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Driver({0}, status=3))
        assert gpu.gpus_in_use() == gpu.cuda_devices() == 0

    def test_a_training_is_reported_with_what_it_used(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Driver({0}))
        trained, report = reported(lambda: "model", 24)
        assert (trained, report.units, report.gpus) == ("model", 24, 1)
        assert report.duration.ToNanoseconds() > 0
