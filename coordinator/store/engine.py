"""Opens the database and brings its schema up to date."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, create_engine, event, make_url

_MIGRATIONS = Path(__file__).parent / "migrations"


def open_engine(url: str) -> Engine:
    """An engine whose every transaction is durable and serial enough for the round engine."""
    engine = create_engine(url)
    if make_url(url).get_backend_name() == "sqlite":
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_immediate)
    return engine


def migrate(engine: Engine) -> None:
    """Upgrades the schema to the newest revision; a no-op if it already is."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _configure_sqlite(connection: Any, _record: Any) -> None:
    # sqlite3's own transaction guessing is switched off: SQLAlchemy's begin event opens them.
    connection.isolation_level = None
    # FULL: an accepted ballot survives a power cut, not only a killed process.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=10000"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_immediate(connection: Any) -> None:
    # Readers that later write would otherwise fail to upgrade their lock.
    connection.exec_driver_sql("BEGIN IMMEDIATE")
