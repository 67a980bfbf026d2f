"""Fixtures for every kind of test: a real PostgreSQL server. Without one tests fail; they are never skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests; each takes a database of its own."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server that the test may stop."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()
