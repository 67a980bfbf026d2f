"""The fast tier, `make unit`: what is left of these tests without files marked `slow`, and a guard that keeps it fast.

A file with `pytestmark = pytest.mark.slow` is not even imported there. Every other file must do without child
processes, PostgreSQL and torch; a test that needs one of them fails in the fast tier and says so.
"""

from __future__ import annotations

import builtins
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

_SLOW = re.compile(r"^pytestmark = pytest\.mark\.slow\b", re.MULTILINE)
_ADVICE = "mark the file: pytestmark = pytest.mark.slow"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--fast` selects the fast tier."""
    parser.addoption("--fast", action="store_true", help="Only tests that are pure and quick.")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out slow files before anything they import is imported."""
    if not config.getoption("--fast") or collection_path.suffix != ".py":
        return None
    return True if _SLOW.search(collection_path.read_text(encoding="utf-8")) else None


@pytest.fixture(autouse=True)
def _stays_fast(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.config.getoption("--fast"):
        return
    servers = {"postgres", "own_postgres"} & set(request.fixturenames)
    if servers:
        pytest.fail(f"a test of the fast tier asks for PostgreSQL; {_ADVICE}")

    def no_process(*_: Any, **__: Any) -> None:
        pytest.fail(f"a test of the fast tier starts a process; {_ADVICE}")

    imported = builtins.__import__

    def no_torch(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name.partition(".")[0] == "torch":
            pytest.fail(f"a test of the fast tier imports torch; {_ADVICE}")
        return imported(name, *arguments, **keywords)

    monkeypatch.setattr(subprocess.Popen, "__init__", no_process)
    monkeypatch.setattr(builtins, "__import__", no_torch)
