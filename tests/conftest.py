"""For every kind of test: a real PostgreSQL server, and that in CI a test skipped for a missing part is a failure."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from postgres import PostgresServer

# Before any library of numbers is loaded, and for every child process: their threads wait for each other by spinning,
# which on a busy machine makes the small networks of tests twenty times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """In CI everything is there that a test needs: one that is skipped has not been run."""
    report = yield
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and in CI none may be: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests; each takes a database of its own."""
    yield from _running_server()


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server that the test may stop."""
    yield from _running_server()


def _running_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()
