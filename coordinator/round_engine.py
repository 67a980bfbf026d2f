"""The round engine: who may vote, when a round closes, when a task is done. Pure; the clock is passed in.

A round is open until every expected silo has voted, or the quorum has voted and the grace has passed, or
its deadline has passed. Below the quorum the deadline is extended, a limited number of times, and then the
task pauses: never a silent hang.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from wire.errors import NOT_A_PARTICIPANT, ROUND_CLOSED, ROUND_NOT_OPEN, Refusal
from wire.task.definition import RoundPolicy


class ClosedBy(StrEnum):
    """Why a round ended."""

    EVERYONE = "everyone voted"
    GRACE = "quorum and grace"
    DEADLINE = "deadline"


@dataclass(frozen=True)
class Round:
    """A round that has been opened, with the votes stored so far."""

    task: str
    number: int
    opened_at: datetime
    closes_at: datetime
    expected: frozenset[str]
    voted: frozenset[str] = frozenset()
    quorum_at: datetime | None = None
    """When the ballot that completed the quorum was stored."""
    extensions: int = 0
    closing: ClosedBy | None = None
    """Set once no more ballots are taken, while the consensus is being formed."""

    def expiry(self, policy: RoundPolicy) -> datetime:
        """The instant at which this round must be looked at again, if nobody votes before."""
        if self.quorum_at is None:
            return self.closes_at
        return min(self.closes_at, self.quorum_at + timedelta(seconds=policy.grace))


@dataclass(frozen=True)
class Wait:
    """Nothing to do before `until`."""

    until: datetime


@dataclass(frozen=True)
class Close:
    """Take no more ballots and form the consensus."""

    by: ClosedBy


@dataclass(frozen=True)
class Extend:
    """Too few voted: keep the ballots and wait until `closes_at`."""

    closes_at: datetime


@dataclass(frozen=True)
class Pause:
    """Too few voted too often: an admin has to look."""

    reason: str


Decision = Wait | Close | Extend | Pause


def open_round(
    task: str, round_number: int, policy: RoundPolicy, expected: Sequence[str], now: datetime
) -> Round:
    """A fresh round that expects a ballot of every silo in `expected`."""
    return Round(
        task, round_number, now, now + timedelta(seconds=policy.deadline), frozenset(expected)
    )


def decide(current: Round, policy: RoundPolicy, now: datetime) -> Decision:
    """What the open round needs at `now`."""
    if current.closing is not None:
        return Close(current.closing)
    if current.quorum_at is not None and current.voted >= current.expected:
        return Close(ClosedBy.EVERYONE)
    expiry = current.expiry(policy)
    if now < expiry:
        return Wait(expiry)
    if current.quorum_at is not None:
        return Close(ClosedBy.DEADLINE if now >= current.closes_at else ClosedBy.GRACE)
    if current.extensions < policy.max_extensions:
        return Extend(now + timedelta(seconds=policy.deadline))
    return Pause(
        f"Round {current.number} has {len(current.voted)} of the {policy.quorum} ballots it needs "
        f"after {current.extensions + 1} deadlines; it goes on with `consilium task start`."
    )


def admit_ballot(current: Round | None, task: str, round_number: int, silo: str) -> None:
    """Raises the refusal a ballot for round `round_number` deserves, or returns if it may be stored.

    `current` is the open round, if any.
    """
    if (
        current is None
        or round_number < current.number
        or (round_number == current.number and current.closing)
    ):
        raise Refusal(ROUND_CLOSED, task=task, round=round_number)
    if round_number > current.number:
        raise Refusal(ROUND_NOT_OPEN, task=task, round=round_number, open=current.number)
    if silo not in current.expected:
        raise Refusal(NOT_A_PARTICIPANT, name=silo, task=task, round=round_number)


def settled(policy: RoundPolicy, rows: int, changed: Sequence[int]) -> bool:
    """True if churn stayed at or below its limit in the last `stop_patience` rounds.

    `changed` holds the changed rows of every closed round, oldest first; the first round has nothing to
    differ from and never counts.
    """
    if policy.stop_patience == 0 or len(changed) <= policy.stop_patience:
        return False
    limit = policy.stop_churn * rows
    return all(count <= limit for count in changed[-policy.stop_patience :])
