"""The private side's copies of public files: one look at the exchange folder, whatever lies there."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from silo_agent.shared.home import SiloHome
from silo_agent.trainer import public_copies
from silo_agent.trainer.public_copies import PublicCopies
from silo_agent.trainer.settings import read_settings
from wire.ballot import digest
from wire.errors import (
    CONTENT_CORRUPT,
    EXTRACTOR_UNKNOWN,
    PUBLIC_SET_UNKNOWN,
    ConfigurationError,
    Refusal,
)
from wire.task.definition import TaskDefinition

CONTENT = b"public rows" * 1000
NAME = digest(CONTENT)


def task(public_set: str = NAME, extractor: str = "", name: str = "trial") -> TaskDefinition:
    values = {"name": name, "public_set": public_set, "extractor": extractor, "rows": 1}
    return TaskDefinition.model_validate({**values, "labels": ["a", "b"]})


@pytest.fixture
def home(tmp_path: Path) -> SiloHome:
    made = SiloHome(tmp_path)
    made.public_sets.mkdir(parents=True)
    made.extractors.mkdir()
    (made.public_sets / NAME).write_bytes(CONTENT)
    return made


def copies(home: SiloHome) -> list[str]:
    return sorted(path.name for path in home.public_copies.rglob("*") if path.is_file())


def test_what_is_rewritten_later_is_not_what_is_used(home: SiloHome) -> None:
    own = PublicCopies(home).public_set(task())
    assert own.is_relative_to(home.trainer)
    shared = home.public_sets / NAME
    assert not own.samefile(shared)
    shared.write_bytes(b"other rows")
    assert own.read_bytes() == CONTENT
    assert PublicCopies(home).public_set(task()).read_bytes() == CONTENT
    shared.unlink()
    assert PublicCopies(home).public_set(task()) == own


def test_a_copy_that_was_damaged_here_is_made_anew(home: SiloHome) -> None:
    PublicCopies(home).public_set(task()).write_bytes(b"damaged")
    assert PublicCopies(home).public_set(task()).read_bytes() == CONTENT


def test_what_is_rewritten_while_it_is_read_is_refused(
    home: SiloHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.read

    def rewriting(descriptor: int, count: int) -> bytes:
        found = read(descriptor, min(count, 1000))
        with (home.public_sets / NAME).open("r+b") as shared:
            shared.write(b"X" * len(CONTENT))
        return found

    monkeypatch.setattr(public_copies.os, "read", rewriting)
    with pytest.raises(Refusal) as refused:
        PublicCopies(home).public_set(task())
    assert refused.value.is_a(CONTENT_CORRUPT)
    assert copies(home) == []


def absent(path: Path) -> None:
    path.unlink()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to("real")


def linked_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("real"))
    path.parent.symlink_to("real")


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def bound_socket(path: Path) -> None:
    path.unlink()
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        socket.socket(socket.AF_UNIX).bind("s")
    finally:
        os.chdir(here)
    (path.parent / "s").rename(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def file_for_folder(path: Path) -> None:
    path.unlink()
    path.parent.rmdir()
    path.parent.write_bytes(b"")


def longer_than_the_rows(path: Path) -> None:
    os.truncate(path, public_copies.ROW_BYTES + 1)


@pytest.mark.parametrize(
    "put",
    [
        absent,
        pipe,
        link,
        linked_folder,
        device,
        bound_socket,
        folder,
        file_for_folder,
        longer_than_the_rows,
    ],
)
def test_what_is_no_regular_file_of_the_digest_is_refused_and_nobody_waits(
    home: SiloHome, put: Callable[[Path], None]
) -> None:
    put(home.public_sets / NAME)
    ended: list[Refusal] = []

    def copy() -> None:
        try:
            PublicCopies(home).public_set(task())
        except Refusal as refusal:
            ended.append(refusal)

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    thread.join(60)
    assert [refusal.is_a(CONTENT_CORRUPT) for refusal in ended] == [True]
    assert copies(home) == []


def test_no_more_than_the_tasks_rows_can_be_is_written(
    home: SiloHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(public_copies, "ROW_BYTES", len(CONTENT))
    PublicCopies(home).public_set(task())
    PublicCopies(home).drop_all()
    monkeypatch.setattr(public_copies, "ROW_BYTES", len(CONTENT) - 1)
    written: list[int] = []
    write = public_copies.write_all
    monkeypatch.setattr(
        public_copies, "write_all", lambda *to: (written.append(len(to[1])), write(*to))
    )
    with pytest.raises(Refusal, match="does not have the digest"):
        PublicCopies(home).public_set(task())
    assert sum(written) == len(CONTENT)


def test_a_name_that_is_no_digest_opens_nothing(home: SiloHome) -> None:
    for definition, fault in (
        (task("../../silo.yaml"), PUBLIC_SET_UNKNOWN),
        (task(extractor="../trainer.sock"), EXTRACTOR_UNKNOWN),
    ):
        with pytest.raises(Refusal) as refused:
            PublicCopies(home).require_names(definition)
        assert refused.value.is_a(fault)
    with pytest.raises(Refusal):
        PublicCopies(home).public_set(task("../../silo.yaml"))


def test_copies_go_with_the_last_task_that_uses_them(home: SiloHome) -> None:
    (home.extractors / NAME).write_bytes(CONTENT)
    first, second = task(extractor=NAME, name="first"), task(name="second")
    made = PublicCopies(home)
    made.public_set(first)
    made.extractor(first)
    assert copies(home) == [NAME, NAME]
    made.drop_unused(first, [second])
    assert [path.parent.name for path in home.public_copies.rglob(NAME)] == ["sets"]
    made.drop_unused(second, [])
    assert copies(home) == []
    made.drop_unused(second, [])


def test_a_trainer_that_starts_finds_no_copies_of_earlier_ones(home: SiloHome) -> None:
    PublicCopies(home).public_set(task())
    (home.public_copies / "sets" / f".{NAME}.1.part").write_bytes(b"half")
    with PublicCopies.borrowed(home) as killed:
        borrowed = killed.public_set(task())
        PublicCopies(home).drop_all()
        assert not borrowed.exists()
    assert copies(home) == []


def test_what_a_command_borrows_is_gone_afterwards(home: SiloHome) -> None:
    with PublicCopies.borrowed(home) as lent:
        path = lent.public_set(task())
        assert path.read_bytes() == CONTENT
        assert path.is_relative_to(home.trainer)
    assert not path.exists()
    assert list(home.trainer.iterdir()) == []


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("data.path", "data: {path: exchange/d.csv, label: y}\nmodel: svm\n"),
        ("data.path", "data: {path: linked/d.csv, label: y}\nmodel: svm\n"),
        (
            "start_from",
            "data: {path: d.csv, label: y}\nmodel: svm\nstart_from: x/../exchange/s.joblib\n",
        ),
        (
            "model.parameters.path",
            "data: {path: d.csv, label: y}\nmodel: {name: transformers, parameters: {path: exchange/m}}\n",
        ),
    ],
)
def test_nothing_that_silo_yaml_names_may_lie_where_the_network_side_writes(
    home: SiloHome, key: str, settings: str
) -> None:
    (home.root / "linked").symlink_to("exchange")
    home.settings_file.write_text(settings)
    with pytest.raises(ConfigurationError, match=f"`{key}` lies in") as refused:
        read_settings(home.settings_file)
    assert "only the private side" in refused.value.hint
