"""Metrics of each task, from its first round at this silo until a day after its end."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from silo_agent.agent.ballot_outcome import BallotOutcome
from silo_agent.agent.metrics.privacy import PrivacyMetrics
from wire.consilium.v1 import trainer_pb2

MOST_TASKS = 100
"""Tasks shown at once; above that, the one updated longest ago is removed."""
KEPT_SECONDS = 86400.0
"""How long an ended task is shown: time enough to scrape its last values."""

_BUCKETS = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400, 86400)
"""Upper bounds, in seconds, of histogram buckets for training times."""


class TaskMetrics:
    """Every series with the label `task`. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        registry: CollectorRegistry,
        privacy: PrivacyMetrics,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._round = Gauge(
            "consilium_agent_round", "Last round voted in.", ["task"], registry=registry
        )
        self._waiting = Gauge(
            "consilium_agent_waiting_for_approval",
            "1 while the task runs and a person has yet to decide on it.",
            ["task"],
            registry=registry,
        )
        self._ballots = Counter(
            "consilium_agent_ballots",
            "Ballots by what became of them.",
            ["task", "outcome"],
            registry=registry,
        )
        self._vote_seconds = Histogram(
            "consilium_agent_vote_seconds",
            "From asking the trainer for a ballot to having it.",
            ["task"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._training_seconds = Histogram(
            "consilium_training_duration_seconds",
            "How long the trainer worked on a ballot or on the final model.",
            ["task"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._units = Gauge(
            "consilium_training_units",
            "Patients, or rows where each row is protected by itself, in the latest training.",
            ["task"],
            registry=registry,
        )
        self._gpus = Gauge(
            "consilium_training_gpus",
            "GPUs the trainer computes on; 0 if it trains on the CPU.",
            ["task"],
            registry=registry,
        )
        self._privacy = privacy
        self._clock = clock
        self._ended: dict[str, float] = {}
        """When each shown task ended, infinity if it has not; the one updated longest ago is first."""

    def begin(self, task: str) -> None:
        """A round is open: creates the task's counters at 0, so that their first increase is seen."""
        self._ended.pop(task, None)
        self._show(task)
        for outcome in BallotOutcome:
            self._ballots.labels(task, outcome)
        for instrument in (self._waiting, self._vote_seconds, self._training_seconds):
            instrument.labels(task)

    def waiting(self, task: str, waits: bool) -> None:
        """Shows whether a person has yet to decide; nothing for a task that never waited."""
        if waits:
            self._show(task)
        if task in self._ended:
            self._waiting.labels(task).set(waits)

    def ballot_made(self, task: str, seconds: float, answer: trainer_pb2.VoteResponse) -> None:
        """The trainer answered with a ballot after `seconds`."""
        self._show(task)
        self._vote_seconds.labels(task).observe(seconds)
        self._privacy.show(answer.privacy_totals, task)
        self.trained(task, answer)

    def trained(
        self, task: str, answer: trainer_pb2.VoteResponse | trainer_pb2.FinishResponse
    ) -> None:
        """Shows the training behind the trainer's answer, if there was one."""
        if answer.HasField("training"):
            self._show(task)
            report = answer.training
            self._training_seconds.labels(task).observe(report.duration.ToNanoseconds() / 1e9)
            self._units.labels(task).set(report.units)
            self._gpus.labels(task).set(report.gpus)

    def ballot_sent(self, task: str, outcome: BallotOutcome) -> None:
        """A ballot was sent, with this outcome."""
        self._show(task)
        self._ballots.labels(task, outcome).inc()

    def voted(self, task: str, round_number: int) -> None:
        """A ballot of this round was accepted."""
        self._show(task)
        self._round.labels(task).set(round_number)

    def end(self, task: str) -> None:
        """The task is over: removes what it waits for and may spend; the rest is shown for a day."""
        self.waiting(task, False)
        self._privacy.forget(task)
        if task in self._ended:
            self._ended[task] = min(self._ended[task], self._clock())

    def forget_ended(self) -> None:
        """Removes the tasks that ended more than a day ago."""
        before = self._clock() - KEPT_SECONDS
        for task in [task for task, ended in self._ended.items() if ended < before]:
            self._forget(task)

    def _show(self, task: str) -> None:
        self._ended[task] = self._ended.pop(task, math.inf)
        if len(self._ended) > MOST_TASKS:
            self._forget(next(iter(self._ended)))

    def _forget(self, task: str) -> None:
        del self._ended[task]
        self._privacy.forget(task)
        for outcome in BallotOutcome:
            self._ballots.remove(task, outcome)
        for instrument in (self._round, self._waiting, self._units, self._gpus):
            instrument.remove(task)
        for histogram in (self._vote_seconds, self._training_seconds):
            histogram.remove(task)
