"""A disk without room: every writer refuses in a sentence, keeps what it has, and goes on when there is room."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from harness import SILOS, TASK, Federation, assert_as_if_nothing_happened, federation

from coordinator.cli.public_set import add
from coordinator.pki.authority import Authority
from silo_agent.agent.audit.entries import Kind
from silo_agent.agent.audit.recorder import read_entries
from silo_agent.trainer.approval.record import Act, Approval, ApprovalRecord
from silo_agent.trainer.task_folder import TaskFolder
from wire.ballot import digest
from wire.consilium.v1 import admin_pb2
from wire.errors import DISK_FULL, STORE_UNAVAILABLE, Refusal
from wire.identity.files import IdentityFiles
from wire.public_file import PublicSetFolder
from wire.runtime.files import write_atomically

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)

# -- every writer, on a disk that fills up while it writes (the audit record: tests/unit/test_silo_audit.py) --

Write = Callable[[int], None]
Read = Callable[[], Sequence[object]]


def plain_file(folder: Path) -> tuple[Write, Read]:
    path = folder / "file"
    return lambda number: write_atomically(path, bytes([number])), lambda: [path.read_bytes()]


def upload(folder: Path) -> tuple[Write, Read]:
    sets = PublicSetFolder(folder)

    def write(number: int) -> None:
        content = bytes([number])
        with sets.upload(digest(content), 1) as writer:
            writer.append(content)

    return write, lambda: sorted(path.read_bytes() for path in folder.iterdir())


def download(folder: Path) -> tuple[Write, Read]:
    sets = PublicSetFolder(folder)

    def write(number: int) -> None:
        content = bytes([number])
        with sets.download(digest(content), 1) as writer:
            writer.append(content[writer.offset :])

    return write, lambda: sorted(path.read_bytes() for path in folder.glob("[!.]*"))


def task_folder(folder: Path) -> tuple[Write, Read]:
    task = TaskFolder(folder, "0" * 64)

    def write(number: int) -> None:
        task.keep_ballot(number, bytes([number]), b"{}")
        task.keep_learner(number, number)
        task.keep_model(number)

    return write, lambda: [*task.rounds_voted(), task.learner(1), task.ballot(1)]


def approvals(folder: Path) -> tuple[Write, Read]:
    record = ApprovalRecord(folder / "approvals.jsonl")

    def write(number: int) -> None:
        record.add(Approval(Act.APPROVED, f"task-{number}", "0" * 64, "anna", "", "", {}))

    return write, lambda: [approval.task for approval in record.approvals()]


def identity(folder: Path) -> tuple[Write, Read]:
    authority = Authority.create(folder / "authority", "rhine", NOW)

    def write(number: int) -> None:
        issued = authority.issue_admin(f"admin-{number}", timedelta(days=1), NOW)
        IdentityFiles(
            folder=folder / "admin",
            key_pem=issued.key_pem,
            certificate_pem=issued.certificate_pem,
            authorities_pem=authority.certificate_pem,
            coordinator_address="localhost:1",
            consortium="rhine",
            name="admin",
        ).store()

    def read() -> Sequence[object]:
        files = IdentityFiles.load(folder / "admin")
        return [str(files.certificate.identity), files.key_pem]

    return write, read


WRITERS = [plain_file, upload, download, task_folder, approvals, identity]


@pytest.mark.parametrize("made_by", WRITERS, ids=lambda made_by: made_by.__name__)
def test_what_was_written_stays_and_writing_goes_on(
    made_by: Callable[[Path], tuple[Write, Read]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write, read = made_by(tmp_path)
    write(1)
    before = read()

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        # Where a file system that allocates late tells of it.
        patched.setattr(os, "fsync", full)
        with pytest.raises(Refusal) as refused:
            write(2)
    assert refused.value.is_a(DISK_FULL)
    assert str(tmp_path) in refused.value.sentence
    assert read() == before
    write(2)
    assert read() != before
    assert not list(tmp_path.rglob(".*.part"))


# -- real processes on a small disk ----------------------------------------------------------------------


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """A disk of `size` at `folder`; skips the test where nobody may mount one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no disk to fill: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Leaves no room on the disk of `folder` until the block ends."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 12))
    assert os.statvfs(folder).f_bavail == 0
    try:
        yield
    finally:
        ballast.unlink()


def furnished(made: Federation) -> None:
    made.publish()
    for name in SILOS:
        made.join(name)
        made.run_silo(name)
    for name in SILOS:
        made.until_told(name, "connected")


def test_a_coordinator_whose_disk_is_full_takes_nothing_in_loses_nothing_and_goes_on(
    tmp_path: Path, undisturbed: Federation
) -> None:
    with small_disk(tmp_path / "coordinator", "24m"), federation(tmp_path) as made:
        furnished(made)
        made.start_task()
        with filled(made.home):
            made.until("trouble", lambda: made.coordinator.events("store_unavailable"))
            assert "full" in made.coordinator.events("store_unavailable")[0]["why"]
            held = made.ballots()
            with pytest.raises(Refusal) as refused:
                add("more", made.folder / "wards.csv", home=made.home, drop=["b"])
            assert refused.value.is_a(DISK_FULL, STORE_UNAVAILABLE), refused.value
            pause = admin_pb2.PauseTaskRequest(name=TASK)
            with pytest.raises(Refusal) as refused:
                made.admin(lambda link: link.admin.PauseTask(pause))
            assert refused.value.is_a(STORE_UNAVAILABLE)
        made.until_finished()
        assert held.items() <= made.ballots().items()
        assert not list((made.home / "public-sets").glob(".*.part"))
        assert_as_if_nothing_happened(made, undisturbed)


def test_a_hospital_whose_disk_is_full_says_so_sends_nothing_and_goes_on(
    tmp_path: Path, undisturbed: Federation
) -> None:
    with small_disk(tmp_path / "north", "8m"), federation(tmp_path) as made:
        furnished(made)
        with filled(made.silo("north").root):
            made.start_task()
            delayed = made.until_told("north", "task_delayed")[0]
            assert delayed["code"] == DISK_FULL.code
            assert str(made.silo("north").root) in delayed["sentence"]
            assert [silo for _, silo in made.ballots() if silo == "north"] == []
            assert not any(m.kind is Kind.BALLOT for m in read_entries(made.silo("north").agent))
        made.until_finished()
        assert_as_if_nothing_happened(made, undisturbed)
