"""How a training went, as the hospital's own metrics show it."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import TypeVar

from silo_agent.trainer.models.gpu import gpus_in_use
from wire.consilium.v1 import trainer_pb2

T = TypeVar("T")


def reported(train: Callable[[], T], units: int) -> tuple[T, trainer_pb2.TrainingReport]:
    """What `train` gives, and how long it took for so many patients."""
    started = perf_counter_ns()
    trained = train()
    report = trainer_pb2.TrainingReport(units=units, gpus=gpus_in_use())
    report.duration.FromNanoseconds(perf_counter_ns() - started)
    return trained, report
