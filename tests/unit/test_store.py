"""The store on SQLite: the contract, and what only a file can promise."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_contract import StoreContract

from coordinator.store import Store
from coordinator.store.engine import open_engine


class TestSqlite(StoreContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'coordinator.db'}"

    def test_every_commit_reaches_the_disk(self, url: str) -> None:
        Store(url).close()
        engine = open_engine(url)
        with engine.begin() as tx:
            pragmas = {
                name: tx.exec_driver_sql(f"PRAGMA {name}").scalar()
                for name in ("journal_mode", "synchronous", "foreign_keys")
            }
        engine.dispose()
        # 2 is FULL: a receipt is given only for what survives a power cut.
        assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
