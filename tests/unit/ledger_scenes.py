"""Ledgers in a test's own folder, and releases to put on them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from silo_agent.shared.home import SiloHome
from silo_agent.trainer.privacy.budget import Budget
from silo_agent.trainer.privacy.ledger.ledger import Ledger, Overspent
from silo_agent.trainer.privacy.ledger.release import Kind, Release
from wire.privacy.declaration import Unit
from wire.privacy.events import Pure

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TASK = "aa" * 32
NO_LIMIT = Budget(None, None, 1e-5, Unit.PATIENT)


def opened(home: Path) -> Ledger:
    """The ledger of a silo's folder, as another process would open it."""
    folder = SiloHome(home)
    return Ledger(folder.ledger, folder.ledger_witness, lambda: NOW)


def ballot(number: int, **changes: Any) -> Release:
    """A ballot of round `number` that costs ε = 0.25 if nothing else is said."""
    values: dict[str, Any] = {
        "kind": Kind.BALLOT,
        "dataset": "private",
        "task": "screening",
        "task_digest": TASK,
        "round": number,
        "ballot_digest": f"{number:064x}",
        "mechanism": "teacher_votes",
        "events": (Pure(epsilon=0.25),),
        "sensitivity": "by_construction",
        "unit": "patient",
        "units": 400,
        "delta": 1e-5,
    }
    return Release.model_validate({**values, **changes})


def at_most(task: float | None = None, lifetime: float | None = None, delta: float = 0) -> Budget:
    """A budget per patient; at δ = 0 losses simply add up."""
    return Budget(task, lifetime, delta, Unit.PATIENT)


def tampered(home: Path, statement: str | Callable[[sqlite3.Connection], None]) -> None:
    """Does something to the file behind the ledger's back."""
    with closing(sqlite3.connect(SiloHome(home).ledger)) as connection:
        for trigger in ("no_update", "no_delete"):
            connection.execute(f"DROP TRIGGER {trigger}")
        if isinstance(statement, str):
            connection.execute(statement)
        else:
            statement(connection)
        connection.commit()


def race(home: Path, number: int, start: Any, results: Any) -> None:
    """Spends at the same moment as others; here, where a new process finds little to import."""
    ledger = opened(home)
    start.wait()
    try:
        ledger.spend(ballot(number), at_most(lifetime=1))
        results.put("paid")
    except Overspent:
        results.put("overspent")
