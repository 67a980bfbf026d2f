"""The first day of an admin, and what an officer can check, as the documentation says: every block is run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from pages import Block, Reader, read
from service import Service, free_port

HOSPITALS = ("essen", "mainz")
READY = {"coordinator": "coordinator_ready", "agent": "connected"}


class FirstDay:
    """One admin and two hospitals with page and shell; what they start ends with the test."""

    def __init__(self, work: Path) -> None:
        self.work = work
        settings, self.blocks = read("first-day.md")
        ports = {name: str(free_port()) for name in ("PORT", "ENROLMENT_PORT", "METRICS_PORT")}
        self.admin = Reader(settings, WORK=str(work), **ports)
        self.hospitals = {
            name: Reader(settings, WORK=str(work), SILO=name, **ports) for name in HOSPITALS
        }
        self.services: dict[str, Service] = {}
        self.printed = ""

    def follow(self) -> None:
        """Does what the page says, from its beginning to its end; hospitals side by side."""
        with ThreadPoolExecutor(len(HOSPITALS)) as pool:
            for block in self.blocks:
                readers = {"admin": self.admin} if block.who == "admin" else self.hospitals
                if block.serves:
                    self._serve(block, readers)
                else:
                    paste = partial(Reader.paste, text=block.text)
                    self.printed += "".join(pool.map(paste, readers.values()))

    def _serve(self, block: Block, readers: dict[str, Reader]) -> None:
        """In this thread: processes that die with pytest die with the thread that starts them."""
        started = {
            name: reader.service(block, self.work / f"{name}.log")
            for name, reader in readers.items()
        }
        self.services |= started
        for service in started.values():
            service.start()
        for service in started.values():
            service.until(READY[block.text.split()[1]])

    def told(self, command: str) -> object:
        """What a command answers the admin."""
        return json.loads(self.admin.paste(f"consilium {command} --json"))

    def end(self) -> None:
        for name, service in self.services.items():
            service.end()
            print(f"----- {name}\n{service.text()}")


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FirstDay]:
    """A day that went as the page says."""
    made = FirstDay(tmp_path_factory.mktemp("first-day"))
    try:
        made.follow()
        yield made
    finally:
        made.end()


def test_the_task_was_finished_by_both_hospitals(day: FirstDay) -> None:
    shown = day.told("task show first-task")
    assert isinstance(shown, dict)
    assert shown["task"]["status"] == "TASK_STATUS_FINISHED"
    assert {one["silo"] for one in shown["declarations"]} == set(HOSPITALS)
    for name in HOSPITALS:
        assert (day.work / f"{name}.joblib").stat().st_size > 0


def test_the_page_shows_what_it_promises(day: FirstDay) -> None:
    for words in ("essen", "screening@1", "first-task", "majority", "staple", "member_revoked"):
        assert words in day.printed


def test_the_revoked_hospital_is_out_and_its_agent_says_why(day: FirstDay) -> None:
    assert day.services["mainz"].wait() == 1
    assert "Silo mainz has been revoked." in day.services["mainz"].text()
    assert not day.services["essen"].ended()
    listed = day.told("silo list")
    assert isinstance(listed, dict)
    assert {one["name"]: one["status"] for one in listed["silos"]} == {
        "essen": "MEMBER_STATUS_ACTIVE",
        "mainz": "MEMBER_STATUS_REVOKED",
    }


def test_what_an_officer_can_check(day: FirstDay) -> None:
    settings, found = read("hospital-it.md")
    assert not settings, "the page is read with the settings of the first day"
    assert {block.who for block in found} == {"hospital"}
    *checks, with_openssl = (block.text for block in found)
    officer = day.hospitals["essen"]
    with ThreadPoolExecutor(2) as pool:
        traffic, audit, ledger, promise = pool.map(officer.paste, checks)
    receipt = officer.paste(with_openssl)
    assert "→ out" in traffic
    left, proven = (int(word) for word in audit.split() if word.isdecimal() and int(word) < 10)
    assert left == proven > 0
    assert "private_labeller" in ledger
    assert "first-task" in promise
    assert "Verified OK" in receipt


def test_a_check_fails_where_something_was_changed(day: FirstDay, tmp_path: Path) -> None:
    """The officer's blocks are no empty gesture."""
    record = day.work / "essen" / "agent" / "audit.jsonl"
    whole = record.read_text()
    verify = next(block for block in read("hospital-it.md")[1] if "audit verify" in block.text)
    try:
        record.write_text(whole.replace("ballot", "pallot", 1))
        with pytest.raises(AssertionError, match="broken at entry"):
            day.hospitals["essen"].paste(verify.text)
    finally:
        record.write_text(whole)
