"""The coordinator's own privacy ledger as a person or a script sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from coordinator.consensus.party_ledger import Spent, by_task, spent
from coordinator.consensus.party_noise import PartyEntry
from wire.privacy.declaration import MICRO
from wire.runtime.terminal import local_time

_ALL = "all of them"


def party_row(entry: PartyEntry) -> dict[str, object]:
    """A noisy consensus in the ledger."""
    return {
        "task": entry.task,
        "round": entry.round,
        "published": local_time(entry.released_at),
        "rows": entry.release.rows,
        "γ": f"{entry.release.gamma_micros / MICRO:g}",
        "moved by a silo": entry.release.sensitivity,
        "drawn": entry.release.draws,
    }


def spent_rows(entries: Sequence[PartyEntry], delta: float) -> list[dict[str, object]]:
    """What each task and all together have cost."""
    tasks = {task: spent(theirs, delta) for task, theirs in by_task(entries).items()}
    return [
        {
            "task": task,
            "consensuses": cost.consensuses,
            "rows": cost.answers,
            "ε": f"{cost.epsilon:.4g}",
            "ε at δ = 0": f"{cost.pure_epsilon:.4g}",
        }
        for task, cost in {**tasks, _ALL: spent(entries, delta)}.items()
    ]


def party_json(
    entries: Sequence[PartyEntry], unprotected: Mapping[str, int], delta: float
) -> dict[str, object]:
    """The same for scripts."""
    return {
        "unit": "silo",
        "delta": delta,
        "entries": [
            {
                "task": entry.task,
                "round": entry.round,
                "released_at": entry.released_at.isoformat(timespec="microseconds"),
                **asdict(entry.release),
            }
            for entry in entries
        ],
        "tasks": {task: asdict(spent(theirs, delta)) for task, theirs in by_task(entries).items()},
        "total": asdict(spent(entries, delta) if entries else Spent(0, 0, 0.0, 0.0)),
        "rounds_without_party_noise": dict(unprotected),
    }


def unprotected_words(rounds: Mapping[str, int]) -> str:
    """That other consensuses have no such bound."""
    named = ", ".join(f"{task} ({number})" for task, number in rounds.items())
    return (
        f"Without party-level noise, so without any bound at this level: {named}. "
        "What is shown above does not cover them."
    )
