"""Opens the database: SQLite or PostgreSQL, its schema up to date, its errors translated to our catalogue.

Transactions run at READ COMMITTED on PostgreSQL and one after the other on SQLite. What must not be changed by
two replicas at once is locked row by row, always in this order, so that there are no deadlocks:
admins, silos (both by name), tasks (by name), rounds and ballots, the revision counter, the head of the audit chain.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import URL, Connection, Engine, Table, create_engine, event, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError

from wire.errors import MESSAGE_MALFORMED, STORE_UNAVAILABLE, ConfigurationError, Refusal

POSTGRES: Final = "postgresql"
SQLITE: Final = "sqlite"

_MIGRATIONS = Path(__file__).parent / "migrations"
_MIGRATION_LOCK = 0x636F6E73  # any number that nobody else uses in this database
# Enough for the store's threads, the locks of rounds being closed and a scrape of the metrics, all at once.
_CONNECTIONS = 6
_MORE_CONNECTIONS = 4
_SQLITE_SECONDS = 10.0  # how long one waits for a lock, unless the URL has a `timeout`
_SQLITE_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOTADB,
}
# SQLSTATE classes: connection exceptions, insufficient resources, operator intervention; then a database that
# has become a standby and a lock that was not to be had in time.
_POSTGRES_UNAVAILABLE = ("08", "53", "57P", "25006", "55P03")
_LOST_RACES = ("40001", "40P01")
# A replica whose machine vanished must not hold its locks for the two hours of TCP's own keepalive.
_SESSION = {
    "lock_timeout": "20s",
    "idle_in_transaction_session_timeout": "60s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "25s",
}
_CONNECT: dict[str, str | int] = {
    "application_name": "consilium-coordinator",
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "options": " ".join(f"-c {name}={value}" for name, value in _SESSION.items()),
}


def open_database(url: str) -> Engine:
    """An engine on a database whose schema is the newest; ConfigurationError if there is no such thing."""
    engine = open_engine(url)
    try:
        migrate(engine)
    except Refusal as refusal:
        engine.dispose()
        why = str(refusal.__cause__ or refusal).strip().splitlines()[0]
        raise ConfigurationError(
            f"The database {engine.url} cannot be used: {why}.",
            "Check that it runs and that `database` in coordinator.yaml is right.",
        ) from refusal
    except CommandError as error:
        engine.dispose()
        raise ConfigurationError(
            f"The database {engine.url} was made by a newer version of Consilium.",
            "Install that version here; a database is never taken back.",
        ) from error
    return engine


def open_engine(url: str) -> Engine:
    """An engine whose every transaction is durable and serial enough for the round engine."""
    parsed = _parsed(url)
    if parsed.get_backend_name() == SQLITE:
        timeout = {} if "timeout" in parsed.query else {"timeout": _SQLITE_SECONDS}
        engine = create_engine(parsed, connect_args=timeout)
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_immediate)
    else:
        engine = create_engine(
            parsed,
            isolation_level="READ COMMITTED",
            pool_pre_ping=True,
            pool_size=_CONNECTIONS,
            max_overflow=_MORE_CONNECTIONS,
            connect_args=_session_arguments(parsed),
        )
    event.listen(engine, "handle_error", _translated)
    return engine


def connect_arguments(engine: Engine) -> dict[str, Any]:
    """What psycopg needs for a connection beside the engine's own."""
    _, arguments = engine.dialect.create_connect_args(engine.url)
    return {**_session_arguments(engine.url), **arguments}


def migrate(engine: Engine, revision: str = "head") -> None:
    """Upgrades the schema to `revision`; a no-op if it already is. Replicas wait for each other."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    with engine.connect() as connection, _tables_may_be_replaced(connection), connection.begin():
        if engine.dialect.name == POSTGRES:
            connection.execute(text("SET LOCAL lock_timeout = 0"))
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"))
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        if engine.dialect.name == SQLITE:
            broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
            if broken:
                raise RuntimeError(f"the migration left {len(broken)} references to nothing")


def schema_revisions(url: str) -> tuple[str | None, str | None]:
    """The schema that a database has, and the newest one we know; changes nothing.

    Refusal STORE_UNAVAILABLE if it does not answer.
    """
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    engine = open_engine(url)
    try:
        with engine.connect() as connection:
            present = MigrationContext.configure(connection).get_current_revision()
    finally:
        engine.dispose()
    return present, ScriptDirectory.from_config(config).get_current_head()


@contextmanager
def snapshot(engine: Engine) -> Iterator[Connection]:
    """A transaction that only reads, and in all its statements sees the database at one moment."""
    with engine.connect() as connection:
        if engine.dialect.name == POSTGRES:
            connection.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
        with connection.begin():
            yield connection


def insert_new(tx: Connection, table: Table, **values: object) -> bool:
    """Inserts a row unless one with the same key is there; False if it is, also if it came just now."""
    dialect = postgresql if tx.dialect.name == POSTGRES else sqlite
    statement = dialect.insert(table).values(**values).on_conflict_do_nothing()
    return tx.execute(statement.returning(*table.primary_key)).first() is not None


def lost_a_race(error: BaseException) -> bool:
    """True for a serialization failure or a deadlock: the transaction was undone and may be run again."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) in _LOST_RACES


@contextmanager
def _tables_may_be_replaced(connection: Connection) -> Iterator[None]:
    """Lets migrations replace tables: SQLite alters one by copying it, and references to the old one must not fail.

    SQLite heeds this only outside a transaction, hence on the driver's own connection.
    """
    if connection.dialect.name != SQLITE:
        yield
        return
    driver: Any = connection.connection.dbapi_connection
    driver.execute("PRAGMA foreign_keys=OFF")
    try:
        yield
    finally:
        driver.execute("PRAGMA foreign_keys=ON")


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        parsed = None
    if parsed is None or parsed.get_backend_name() not in (SQLITE, POSTGRES):
        raise ConfigurationError(
            "The database's URL is not one of SQLite or PostgreSQL.",
            "Write it as postgresql+psycopg://user:password@host/database, or leave it empty.",
        )
    if parsed.get_backend_name() == POSTGRES:
        try:
            import psycopg  # noqa: F401  an extra: SQLite needs no driver
        except ImportError:
            raise ConfigurationError(
                "PostgreSQL needs a driver that is not installed.",
                "Install it with `pip install 'consilium[postgres]'`.",
            ) from None
        return parsed.set(drivername="postgresql+psycopg")
    return parsed


def _session_arguments(url: URL) -> dict[str, str | int]:
    """Our settings of a connection, but for those the operator wrote into the URL."""
    return {name: value for name, value in _CONNECT.items() if name not in url.query}


def _translated(context: ExceptionContext) -> BaseException | None:
    """STORE_UNAVAILABLE for a database that is gone or cannot write, MESSAGE_MALFORMED for a caller's value that
    none can hold; other errors stay as they are.
    """
    # SQLAlchemy itself replaces a connection that turns out to be dead before it was used.
    if context.is_pre_ping:
        return None
    # PostgreSQL takes no text with a zero byte and no number beyond its column's, SQLite's driver none beyond 64 bits.
    too_large = isinstance(context.original_exception, OverflowError)
    if too_large or isinstance(context.sqlalchemy_exception, DataError):
        return Refusal(MESSAGE_MALFORMED, why="a text or a number in it cannot be stored")
    error = context.original_exception
    if isinstance(error, sqlite3.Error):
        # Extended codes carry the plain one in their low byte; the driver's own errors have none.
        unavailable = getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE_UNAVAILABLE
    else:
        state = getattr(error, "sqlstate", None)
        never_connected = type(error).__name__ == "OperationalError" and state is None
        unavailable = context.is_disconnect or never_connected
        unavailable = unavailable or (state is not None and state.startswith(_POSTGRES_UNAVAILABLE))
    return Refusal(STORE_UNAVAILABLE) if unavailable else None


def _configure_sqlite(connection: Any, _record: Any) -> None:
    # sqlite3's own transaction guessing is switched off: SQLAlchemy's begin event opens them.
    connection.isolation_level = None
    # FULL: an accepted ballot survives a power cut, not only a killed process.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")
    # PostgreSQL's name for the order of code points; see `schema.in_order`.
    connection.create_collation("C", lambda one, other: (one > other) - (one < other))


def _begin_immediate(connection: Any) -> None:
    # Readers that later write would otherwise fail to upgrade their lock.
    connection.exec_driver_sql("BEGIN IMMEDIATE")
