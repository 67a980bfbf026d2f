"""Is memory flat? Resident memory by round, and the slope of a line through it, life by life."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

WARM_UP_ROUNDS = 60
"""What a process takes in its first rounds it takes once: thread stacks, connections, and the coordinator's page
cache, which SQLite fills to 2 MiB with what 20 silos send in that time."""
SPAN_ROUNDS = 30
"""A life with fewer rounds behind its warm-up says nothing about a slope."""
FLAT_MIB = 4.0
"""Growth over the whole soak that still counts as flat."""


@dataclass(frozen=True)
class Sample:
    """Resident memory of one process when a round had closed; `life` counts its restarts."""

    process: str
    life: int
    round: int
    mib: float


@dataclass(frozen=True)
class Growth:
    """How the memory of one kind of process grew."""

    lives: int
    """Lives long enough to count."""
    longest: int
    """Rounds of the longest of them, without its warm-up."""
    slope: float | None
    """MiB per round: one line through all lives, each from a level of its own; None without a long life."""
    steepest: float | None
    """MiB per round of the life that grew fastest."""
    mib: float
    """Largest sample, warm-up included."""

    def over(self, rounds: int) -> float | None:
        """MiB by which `rounds` rounds would let it grow."""
        return None if self.slope is None else self.slope * rounds

    def flat(self, rounds: int) -> bool | None:
        """Whether it stays within FLAT_MIB over `rounds`; None if no life was long enough to tell."""
        grown = self.over(rounds)
        return None if grown is None else grown < FLAT_MIB


@dataclass
class Memory:
    """The samples of a soak."""

    samples: list[Sample] = field(default_factory=list)

    def take(self, process: str, life: int, round_number: int, pid: int) -> None:
        """Adds a sample of a process that may have died this moment."""
        mib = resident_mib(pid)
        if mib is not None:
            self.samples.append(Sample(process, life, round_number, mib))

    def of(self, processes: Iterable[str]) -> list[Sample]:
        """The samples of some processes."""
        wanted = set(processes)
        return [sample for sample in self.samples if sample.process in wanted]


def growth(samples: Sequence[Sample]) -> Growth:
    """The slope in some processes' samples, by least squares within each life."""
    lives: dict[tuple[str, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        lives[sample.process, sample.life].append(sample)
    trends = [trend for life in lives.values() if (trend := _trend(life)) is not None]
    variance = sum(one.variance for one in trends)
    return Growth(
        lives=len(trends),
        longest=max((one.span for one in trends), default=0),
        slope=sum(one.covariance for one in trends) / variance if trends else None,
        steepest=max((one.covariance / one.variance for one in trends), default=None),
        mib=max((sample.mib for sample in samples), default=0.0),
    )


@dataclass(frozen=True)
class _Trend:
    """One life's memory over its rounds: what least squares need."""

    covariance: float
    variance: float
    span: int
    """Rounds from the first sample to the last."""


def _trend(life: Sequence[Sample]) -> _Trend | None:
    """The trend without the warm-up; None if what is left is too short."""
    first = min(sample.round for sample in life) + WARM_UP_ROUNDS
    warm = [sample for sample in life if sample.round >= first]
    if not warm or (span := warm[-1].round - warm[0].round) < SPAN_ROUNDS:
        return None
    rounds = np.array([sample.round for sample in warm], dtype=float)
    mib = np.array([sample.mib for sample in warm])
    rounds -= rounds.mean()
    return _Trend(float(rounds @ (mib - mib.mean())), float(rounds @ rounds), span)


def resident_mib(pid: int) -> float | None:
    """VmRSS of a process in MiB; None if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return None
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return None
