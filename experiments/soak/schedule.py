"""Which faults come when: drawn once from a seed, bounded in number, before anything runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random


class FaultKind(StrEnum):
    """What goes wrong."""

    AGENT = "agent killed"
    TRAINERS = "trainers killed"
    COORDINATOR = "coordinator killed"
    RESET = "connection reset"
    STALL = "line silent, then goes on"
    BLACKHOLE = "line silent, then reset"
    SLOW = "line slowed down"


KILLS = (FaultKind.AGENT, FaultKind.TRAINERS, FaultKind.COORDINATOR)

# Seconds: of a kill until the process is started again, of a line until it is as before.
_SECONDS: Mapping[FaultKind, tuple[float, float]] = {
    FaultKind.AGENT: (0.05, 1.0),
    FaultKind.TRAINERS: (0.05, 1.0),
    FaultKind.COORDINATOR: (0.05, 1.0),
    FaultKind.RESET: (0.0, 0.0),
    FaultKind.STALL: (0.5, 3.0),
    FaultKind.BLACKHOLE: (0.5, 3.0),
    FaultKind.SLOW: (1.0, 5.0),
}
_LONGEST_WAIT = 0.4


@dataclass(frozen=True)
class Fault:
    """One fault, `after` seconds into round `round`; `silo` is a number, None where none is meant."""

    round: int
    after: float
    kind: FaultKind
    silo: int | None
    seconds: float
    """How long it lasts, or how long a killed process stays down."""


@dataclass(frozen=True)
class Schedule:
    """Every fault of a soak, in the order of rounds."""

    faults: Sequence[Fault]

    def in_round(self, round_number: int) -> list[Fault]:
        """The faults that begin in this round."""
        return [fault for fault in self.faults if fault.round == round_number]

    @property
    def counts(self) -> dict[FaultKind, int]:
        """How often each kind was drawn."""
        drawn = Counter(fault.kind for fault in self.faults)
        return {kind: drawn[kind] for kind in FaultKind}


def draw(silos: int, rounds: int, seed: int) -> Schedule:
    """The faults of a soak, from the second round to the last but one.

    Every fourth silo's agent is never killed, only cut off, and the coordinator is left alone in the last three
    fifths of the rounds: growing memory shows in processes that live long.
    """
    random = Random(seed)  # noqa: S311  not a secret
    killable = [silo for silo in range(silos) if silo % 4 != 3] or [0]
    faults: list[Fault] = []

    def add(kind: FaultKind, first: int, last: int, silo: int | None) -> None:
        round_number = random.randint(first, max(first, last))
        after = random.uniform(0, _LONGEST_WAIT)
        faults.append(Fault(round_number, after, kind, silo, random.uniform(*_SECONDS[kind])))

    last = rounds - 1
    for _ in range(max(2, 3 * rounds // 10)):
        add(FaultKind.AGENT, 2, last, random.choice(killable))
    for kind, share in (
        (FaultKind.RESET, 5),
        (FaultKind.STALL, 2),
        (FaultKind.BLACKHOLE, 2),
        (FaultKind.SLOW, 2),
    ):
        for _ in range(max(1, share * rounds // 20)):
            add(kind, 2, last, random.randrange(silos))
    for _ in range(max(1, rounds // 40)):
        add(FaultKind.TRAINERS, 2, last, None)
    deaths = min(3, max(1, rounds // 60))
    window = max(1, 2 * rounds // 5 // deaths)
    for part in range(deaths):
        add(FaultKind.COORDINATOR, 2 + part * window, min(1 + (part + 1) * window, last), None)
    return Schedule(sorted(faults, key=lambda fault: (fault.round, fault.after)))
