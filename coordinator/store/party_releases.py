"""The coordinator's own privacy ledger: one entry per round whose consensus was published behind noise."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, Engine, func, insert, select

from coordinator.consensus.party_noise import PartyEntry, PartyRelease
from coordinator.store.engine import snapshot
from coordinator.store.schema import in_order, party_releases

_PAGE = 1000


class PartyLedger:
    """Each method is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def page(self, after: tuple[str, int] = ("", 0)) -> list[PartyEntry]:
        """The next entries behind (task, round), by task and round; empty at the end."""
        task, round_number = after
        name = party_releases.c.task
        behind = (in_order(name) > task) | (
            (name == task) & (party_releases.c.round > round_number)
        )
        query = (
            select(party_releases)
            .where(behind)
            .order_by(in_order(name), party_releases.c.round)
            .limit(_PAGE)
        )
        with snapshot(self._engine) as tx:
            return [
                PartyEntry(
                    task=row["task"],
                    round=row["round"],
                    released_at=row["released_at"],
                    release=PartyRelease(
                        row["sensitivity"], row["gamma_micros"], row["rows"], row["draws"]
                    ),
                )
                for row in tx.execute(query).mappings()
            ]

    def draws(self) -> dict[str, int]:
        """How often noise was drawn for a consensus that became known, by task."""
        task, drawn = party_releases.c.task, func.sum(party_releases.c.draws)
        with snapshot(self._engine) as tx:
            return {
                name: int(times) for name, times in tx.execute(select(task, drawn).group_by(task))
            }


def enter_release(
    tx: Connection, task: str, round_number: int, now: datetime, release: PartyRelease
) -> None:
    """Books a release within the transaction that publishes it; a second one for a round cannot be booked."""
    tx.execute(
        insert(party_releases).values(
            task=task, round=round_number, released_at=now, **vars(release)
        )
    )
