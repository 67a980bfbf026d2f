"""What a soak showed, and whether that is what was promised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from experiments.soak.memory import FLAT_MIB, Growth, Memory, growth
from experiments.soak.schedule import FaultKind


@dataclass(frozen=True)
class Outcome:
    """Everything counted and measured."""

    silos: int
    rounds: int
    seed: int
    seconds: float
    """From the first round's opening to the last one's closing."""
    faults: Mapping[FaultKind, int]
    """Those that happened."""
    memory: Memory
    agents: tuple[str, ...]
    """Process names of the agents in `memory`."""
    consensus: tuple[str, ...]
    """Digests of the published consensus, round by round."""
    expected: tuple[str, ...]
    """The same of a run without faults."""
    complete: bool
    """Every round counted every silo."""
    coordinator_record_whole: bool
    coordinator_record_entries: int
    silo_records_whole: int
    ballots_proven: int
    """Receipts that verify, in all silos' records."""
    ballots_without_receipt: int
    ballots_sent_again: int
    """Casts beyond one per silo and round: answers that a fault swallowed."""
    reconnects: int
    """Connections an agent made anew in the same life."""
    stopped_when_asked: int
    """Agents that ended by themselves after SIGTERM."""
    connections: int
    """TCP connections on all lines."""
    resets: int
    relayed_bytes: int

    @property
    def growths(self) -> dict[str, Growth]:
        """Memory by kind of process."""
        return {
            "coordinator": growth(self.memory.of(["coordinator"])),
            "agents": growth(self.memory.of(self.agents)),
        }

    @property
    def promises(self) -> dict[str, bool | None]:
        """What had to hold; None where the soak was too short to tell."""
        ballots = self.silos * self.rounds
        flat = {
            f"memory of {name} is flat (< {FLAT_MIB:g} MiB over all rounds)": found.flat(
                self.rounds
            )
            for name, found in self.growths.items()
        }
        return {
            "every round's consensus is that of a run without faults": (
                self.consensus == self.expected
            ),
            "every round counted every silo": self.complete,
            "the coordinator's audit record is whole": self.coordinator_record_whole,
            "every silo's audit record is whole": self.silo_records_whole == self.silos,
            "every ballot has a receipt that verifies": (
                self.ballots_proven >= ballots and self.ballots_without_receipt == 0
            ),
            "every agent stops when asked": self.stopped_when_asked == self.silos,
            **flat,
        }

    @property
    def kept(self) -> bool:
        """No promise is broken."""
        return all(held is not False for held in self.promises.values())

    def as_json(self) -> dict[str, object]:
        """The numbers, with memory as slopes and samples."""
        return {
            "silos": self.silos,
            "rounds": self.rounds,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "faults": {str(kind): self.faults.get(kind, 0) for kind in FaultKind},
            "promises": self.promises,
            "first_difference": self.first_difference,
            "last_consensus": self.consensus[-1] if self.consensus else None,
            "coordinator_record_entries": self.coordinator_record_entries,
            "ballots_proven": self.ballots_proven,
            "ballots_without_receipt": self.ballots_without_receipt,
            "ballots_sent_again": self.ballots_sent_again,
            "reconnects": self.reconnects,
            "connections": self.connections,
            "resets": self.resets,
            "relayed_bytes": self.relayed_bytes,
            "memory": {
                name: {**vars(found), "mib_over_all_rounds": found.over(self.rounds)}
                for name, found in self.growths.items()
            },
            "samples": [vars(sample) for sample in self.memory.samples],
        }

    @property
    def first_difference(self) -> int | None:
        """The first round whose consensus is not the expected one."""
        pairs = zip(self.consensus, self.expected, strict=False)
        different = (round_number for round_number, (a, b) in enumerate(pairs, start=1) if a != b)
        short = min(len(self.consensus), len(self.expected)) + 1
        return next(different, None if self.consensus == self.expected else short)
