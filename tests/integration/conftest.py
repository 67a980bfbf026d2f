"""Fixtures of the integration tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from loopback import Consortium

from coordinator.pki.authority import Authority


@pytest.fixture(scope="session", autouse=True)
def left_behind() -> Iterator[None]:
    """Processes are killed here; what they leave in the temporary folder goes with the tests."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setenv("TMPDIR", folder)
        yield


@pytest.fixture
def now() -> datetime:
    """gRPC reads the machine's clock, so certificates must hold today."""
    return datetime.now(UTC).replace(microsecond=0)


@pytest.fixture
def consortium(tmp_path: Path, now: datetime) -> Consortium:
    """The consortium everyone in a test belongs to."""
    return Consortium(tmp_path, Authority.create(tmp_path / "ours", "rhine-clinics", now), now)


@pytest.fixture
def stranger(tmp_path: Path, now: datetime) -> Consortium:
    """Another consortium under the same name: only its key differs."""
    folder = tmp_path / "theirs"
    return Consortium(folder, Authority.create(folder, "rhine-clinics", now), now)
