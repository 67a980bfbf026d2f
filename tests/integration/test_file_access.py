"""Outside containers too, nobody else on the machine reads ballots, models, keys or records."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from federation import federation


@pytest.fixture(autouse=True)
def _careless() -> Iterator[None]:
    """The account's umask gives everything to everybody, as an installation before this release had it."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path, *left_out: Path) -> list[str]:
    """Paths below `folder` that another account may use."""
    return [
        f"{stat.S_IMODE(path.lstat().st_mode):04o} {path.relative_to(folder)}"
        for path in folder.rglob("*")
        if not path.is_symlink()
        and stat.S_IMODE(path.lstat().st_mode) & 0o077
        and not any(path.is_relative_to(one) for one in left_out)
    ]


def test_nothing_that_a_federation_writes_is_for_others(tmp_path: Path) -> None:
    with federation(tmp_path) as live:
        silos = live.join("north"), live.join("south")
        live.run(*silos)
        live.start("trial", rounds={"max_rounds": 2, "quorum": 2})
        live.until_finished("trial")
        for silo in silos:
            silo.agent.until("task_finished")
        assert (live.home / "coordinator.db").exists()
        # The export that the operator names, and what the test itself put there.
        assert not open_to_others(live.home)
        for silo in silos:
            home = silo.home
            own = (home.identity, home.agent, home.exchange, home.trainer)
            assert all(any(folder.rglob("*")) for folder in own)
            for folder in (*own, home.ledger_witness.parent):
                assert not open_to_others(folder)
                assert not stat.S_IMODE(folder.stat().st_mode) & 0o077
            assert list(home.trainer.rglob("*.joblib")), "a model is among what was looked at"
