"""`consilium coordinator doctor`: what an operator should mend, and an exit status for scripts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from coordinator.cli.coordinator import init
from coordinator.settings import CoordinatorHome
from coordinator.setup.doctor import examine
from wire.runtime.findings import Finding, Status
from wire.runtime.permissions import narrow

pytestmark = pytest.mark.slow

NOW = datetime.now(UTC)


@pytest.fixture
def coordinator(tmp_path: Path) -> CoordinatorHome:
    init(home=tmp_path / "coordinator", host=["localhost"])
    return CoordinatorHome(tmp_path / "coordinator")


def findings(
    home: CoordinatorHome, now: datetime | None = None, **more: bool
) -> dict[str, Finding]:
    now = now or datetime.now(UTC)
    return {finding.name: finding for finding in examine(home, now, **{"serving": True, **more})}


def doctor(home: CoordinatorHome) -> subprocess.CompletedProcess[str]:
    program = "from wire.runtime.cli import main; main()"
    words = ["coordinator", "doctor", "--json", "--home", str(home.root)]
    return subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )


def test_a_fresh_coordinator_is_well_but_for_the_admins_key(coordinator: CoordinatorHome) -> None:
    narrow(coordinator.places(coordinator.root / "coordinator.db"))
    found = findings(coordinator)
    assert {one.name for one in found.values() if one.status is not Status.OK} == {"admin's key"}
    shutil.rmtree(coordinator.admin)
    assert all(one.status is Status.OK for one in findings(coordinator).values())


def test_the_coordinators_doctor_finds_what_is_wrong(coordinator: CoordinatorHome) -> None:
    narrow(coordinator.places(coordinator.root / "coordinator.db"))
    (coordinator.root / "coordinator.db").chmod(0o644)
    found = findings(coordinator)
    assert found["file access"].status is Status.WARNING
    assert "coordinator.db (0644)" in found["file access"].sentence
    later = findings(coordinator, NOW + timedelta(days=365 * 30))
    assert later["authority"].status is Status.FAILED
    assert later["server"].status is Status.FAILED
    assert findings(coordinator, NOW - timedelta(days=30))["clock"].status is Status.FAILED
    (coordinator.root / "coordinator.db").rename(coordinator.root / "lost.db")
    assert findings(coordinator)["database"].status is Status.FAILED
    coordinator.settings_file.write_text("hosts: 3\n")
    broken = findings(coordinator)
    assert broken["settings"].status is Status.FAILED
    assert broken["database"].status is Status.SKIPPED


def test_it_is_a_command_with_an_exit_status(coordinator: CoordinatorHome) -> None:
    well = doctor(coordinator)
    assert '"name": "database"' in well.stdout, well.stderr
    assert well.returncode == 0
    (coordinator.root / "coordinator.db").unlink()
    assert doctor(coordinator).returncode == 1
