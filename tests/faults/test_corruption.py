"""Bytes that are not what they were: refused, told, replaced; half-written files are swept or set aside."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
from coordinator_process import consilium
from harness import (
    SILOS,
    Federation,
    assert_as_if_nothing_happened,
    assert_records_are_whole,
    federation,
)

from coordinator.cli.coordinator import init
from coordinator.settings import CoordinatorHome
from silo_agent.agent.audit.entries import Kind
from silo_agent.agent.audit.file import record_path
from silo_agent.agent.audit.recorder import read_entries
from wire.errors import CONTENT_CORRUPT, ConfigurationError

# -- while a federation runs -------------------------------------------------------------------------------


def flip(path: Path) -> None:
    """Changes one byte in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def digest_published(made: Federation) -> str:
    ((digest,),) = made.rows("SELECT digest FROM public_sets")
    return str(digest)


def sets_fetched(made: Federation, name: str) -> int:
    kinds = [movement.kind for movement in read_entries(made.silo(name).agent)]
    return kinds.count(Kind.PUBLIC_SET)


def complaints(made: Federation, name: str) -> list[str]:
    """What the agent said of content that is not what its digest says."""
    told = made.processes[f"{name}-agent"].events("task_delayed")
    return [event["sentence"] for event in told if event["code"] == CONTENT_CORRUPT.code]


def is_empty(folder: Path) -> bool:
    return not list(folder.iterdir())


def test_a_public_set_damaged_on_either_disk_is_never_voted_on_and_heals(
    tmp_path: Path, undisturbed: Federation
) -> None:
    with federation(tmp_path) as made:
        made.publish()
        digest = digest_published(made)
        for name in SILOS:
            made.join(name)
        at_coordinator = made.home / "public-sets" / digest
        whole = at_coordinator.read_bytes()
        flip(at_coordinator)
        # South was cut in a download whose beginning has been damaged; west has a copy that has.
        for silo, part in (("south", f".{digest}.part"), ("west", digest)):
            folder = made.silo(silo).public_sets
            folder.mkdir(parents=True)
            (folder / part).write_bytes(whole[:700] if silo == "south" else whole)
            flip(folder / part)
        for name in SILOS:
            made.run_silo(name)
        made.start_task()
        made.until("complaints", lambda: all(complaints(made, name) for name in SILOS))
        assert all(digest in told for name in SILOS for told in complaints(made, name))
        # Nothing of it stays that a later attempt could build upon.
        for name in ("north", "south"):
            # Now and then a further attempt is under way.
            made.until("an empty folder", partial(is_empty, made.silo(name).public_sets))
        assert made.ballots() == {}

        made.publish()
        assert at_coordinator.read_bytes() == whole
        made.until_finished()
        assert_as_if_nothing_happened(made, undisturbed)
        assert_records_are_whole(made)
        for name in SILOS:
            assert (made.silo(name).public_sets / digest).read_bytes() == whole
        assert [sets_fetched(made, name) for name in ("north", "south")] == [1, 1]


def half_a_line(made: Federation) -> None:
    """As a power cut in the middle of a write leaves it."""
    with record_path(made.silo("north").agent).open("ab") as record:
        record.write(b'{"entry":{"at":"2026-03-01T12:00')


def half_a_file(made: Federation) -> None:
    (task,) = made.silo("west").tasks.iterdir()
    for name in ("learner-000001.joblib", "ballot-000002.kept"):
        (task / f".{name}.99.part").write_bytes(b"half")


def test_half_written_files_are_set_aside_or_swept(tmp_path: Path, undisturbed: Federation) -> None:
    points = {"north-agent": ["ballot-recorded"], "west-trainer": ["ballot-kept"]}
    looks = {"ballot-recorded": half_a_line, "ballot-kept": half_a_file}
    with federation(tmp_path, points, looks) as made:
        made.publish()
        for name in SILOS:
            made.join(name)
            made.run_silo(name)
        made.start_task()
        made.until_finished()
        assert made.died_at() == {name: tuple(where) for name, where in points.items()}
        assert_as_if_nothing_happened(made, undisturbed)
        assert_records_are_whole(made)
        told = consilium("agent", "audit", "verify", "--home", made.silo("north").root)
        assert "1 half-written lines were left by a crash and set aside" in told.out
        assert not list(made.silo("west").root.rglob(".*.part"))


# -- before anything starts --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("consortium") / "home"
    init(home=home, host=["localhost"], listen="127.0.0.1")
    return home


def test_settings_cut_short_are_told_as_a_sentence(consortium: Path, tmp_path: Path) -> None:
    home = CoordinatorHome(tmp_path)
    text = (consortium / "coordinator.yaml").read_text()
    # Behind the last key without a default nobody can tell; the database then says whose settings it needs.
    for end in range(text.index("- localhost") + 2):
        home.settings_file.write_text(text[:end])
        with pytest.raises(ConfigurationError, match=str(home.settings_file)):
            home.settings()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:5000]), "malformed"),
        (lambda path: path.write_bytes(b"no database at all" * 100), "not a database"),
        (lambda path: path.unlink(), "holds no consortium"),
    ],
    ids=["cut short", "overwritten", "gone"],
)
def test_a_damaged_database_is_not_served(
    consortium: Path, tmp_path: Path, damage: object, sentence: str
) -> None:
    home = tmp_path / "home"
    shutil.copytree(consortium, home)
    assert callable(damage)
    damage(home / "coordinator.db")
    assert sentence in consilium("coordinator", "serve", "--home", home, status=1).err
