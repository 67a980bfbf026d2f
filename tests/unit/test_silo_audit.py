"""The silo's audit record: on disk before anything leaves, whole after every crash, and every damage found."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from coordinator.pki.authority import Authority
from silo_agent.agent.audit import file as audit_file
from silo_agent.agent.audit.cli import app
from silo_agent.agent.audit.entries import Direction, Kind
from silo_agent.agent.audit.file import read_record
from silo_agent.agent.audit.receipts import SignerFolder
from silo_agent.agent.audit.recorder import AuditLog, read_entries
from silo_agent.agent.audit.report import Report, rows, verify_record
from silo_agent.agent.ballot_outcome import BallotOutcome
from silo_agent.agent.ballot_sender import BallotSender
from wire.ballot import digest
from wire.consilium.v1 import ballot_pb2
from wire.errors import (
    BALLOT_CONFLICT,
    BALLOT_LABEL_SPACE,
    NOT_A_PARTICIPANT,
    PRIVACY_TOO_WEAK,
    RECEIPT_UNKNOWN,
    ROUND_CLOSED,
    SIGNER_UNKNOWN,
    TASK_NOT_RUNNING,
    UNREACHABLE,
    ConfigurationError,
    ConsiliumError,
    Fault,
    Refusal,
)
from wire.receipts import Signer, Statement
from wire.runtime.chain import Damage, head_of, link_hash

pytestmark = pytest.mark.slow

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DIGESTS = [digest(bytes([number])) for number in range(9)]


def ticking() -> Callable[[], datetime]:
    """A clock that moves by a second whenever it is read."""
    moments = (NOW + timedelta(seconds=second) for second in range(10**6))
    return lambda: next(moments)


def opened(folder: Path) -> AuditLog:
    return AuditLog(folder, ticking())


def filled(folder: Path, ballots: int = 5) -> None:
    log = opened(folder)
    for number in range(1, ballots + 1):
        log.record(Direction.OUT, Kind.BALLOT, "tumour", number, 94, DIGESTS[number])


def record_file(folder: Path) -> Path:
    return folder / "audit.jsonl"


def damage_in(folder: Path) -> tuple[int, Damage] | None:
    broken = read_record(folder).broken
    return (broken.sequence, broken.damage) if broken else None


class TestRecording:
    def test_an_entry_says_when_what_which_way_how_much_and_its_digest(
        self, tmp_path: Path
    ) -> None:
        opened(tmp_path).record(Direction.OUT, Kind.BALLOT, "tumour", 3, 94, DIGESTS[0])
        line = json.loads(record_file(tmp_path).read_text())
        assert line["entry"] == {
            "at": "2026-03-01T12:00:00.000+00:00",
            "direction": "out",
            "kind": "ballot",
            "task": "tumour",
            "round": 3,
            "bytes": 94,
            "digest": DIGESTS[0],
        }
        assert line["sequence"] == 1
        assert line["hash"] == link_hash(line["previous"], line["entry"])

    def test_consensuses_of_a_round_are_remembered_each_once(self, tmp_path: Path) -> None:
        log, definition = opened(tmp_path), DIGESTS[0]
        for task in ("tumour", "stroke"):
            log.record(Direction.HERE, Kind.APPROVAL, task, 0, 0, definition)
        for task, number, came in (
            ("tumour", 1, DIGESTS[1]),
            ("tumour", 2, DIGESTS[2]),
            ("tumour", 2, DIGESTS[2]),
            ("stroke", 2, DIGESTS[4]),
            ("tumour", 1, DIGESTS[3]),
        ):
            log.record(Direction.IN, Kind.CONSENSUS, task, number, 93, came)
        for one in (log, opened(tmp_path)):
            assert one.consensuses("tumour", definition, 1) == [DIGESTS[1], DIGESTS[3]]
            assert one.consensuses("tumour", definition, 2) == [DIGESTS[2]]
            assert one.consensuses("tumour", definition, 3) == []
            assert one.consensuses("stroke", definition, 1) == []
            assert one.consensuses("sepsis", definition, 1) == []

    def test_a_task_that_had_the_name_before_is_another(self, tmp_path: Path) -> None:
        log = opened(tmp_path)
        for definition, came in ((DIGESTS[0], DIGESTS[1]), (DIGESTS[2], DIGESTS[3])):
            log.record(Direction.HERE, Kind.APPROVAL, "tumour", 0, 0, definition)
            log.record(Direction.IN, Kind.CONSENSUS, "tumour", 1, 93, came)
        assert log.consensuses("tumour", DIGESTS[0], 1) == [DIGESTS[1]]
        assert log.consensuses("tumour", DIGESTS[2], 1) == [DIGESTS[3]]
        assert log.consensuses("tumour", DIGESTS[4], 1) == []

    def test_the_head_is_kept_in_a_file_of_its_own(self, tmp_path: Path) -> None:
        filled(tmp_path)
        head = head_of(read_record(tmp_path).links)
        kept = json.loads((tmp_path / "audit-head.json").read_text())
        assert kept == {"sequence": 5, "hash": head.hash}

    def test_one_flush_per_entry_is_enough(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = opened(tmp_path)
        log.record(Direction.OUT, Kind.BALLOT, "tumour", 1, 94, DIGESTS[1])
        flushed: list[int] = []
        monkeypatch.setattr(os, "fsync", flushed.append)
        log.record(Direction.OUT, Kind.BALLOT, "tumour", 2, 94, DIGESTS[2])
        assert len(flushed) == 1

    def test_goes_on_where_an_earlier_run_ended(self, tmp_path: Path) -> None:
        filled(tmp_path, 2)
        opened(tmp_path).record(Direction.IN, Kind.CONSENSUS, "tumour", 2, 93, DIGESTS[3])
        assert [link.sequence for link in read_record(tmp_path).links] == [1, 2, 3]
        assert damage_in(tmp_path) is None

    def test_a_folder_nothing_was_written_in_is_whole(self, tmp_path: Path) -> None:
        assert read_record(tmp_path / "agent").links == ()
        assert damage_in(tmp_path / "agent") is None
        opened(tmp_path / "agent")

    def test_every_byte_is_on_the_disk_before_recording_returns(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: list[tuple[str, int]] = []
        real = os.fsync

        def fsync(descriptor: int) -> None:
            real(descriptor)
            name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
            synced.append((name, os.fstat(descriptor).st_size))

        monkeypatch.setattr(os, "fsync", fsync)
        filled(tmp_path, 1)
        size = record_file(tmp_path).stat().st_size
        assert ("audit.jsonl", size) in synced


class TestCrashes:
    @pytest.mark.parametrize("cut", [1, 40, 200])
    def test_a_half_written_line_is_set_aside_and_the_chain_goes_on(
        self, tmp_path: Path, cut: int
    ) -> None:
        filled(tmp_path, 2)
        half = record_file(tmp_path).read_bytes().splitlines()[0][:cut]
        with record_file(tmp_path).open("ab") as file:
            file.write(half)
        assert damage_in(tmp_path) is None
        opened(tmp_path).record(Direction.OUT, Kind.BALLOT, "tumour", 3, 94, DIGESTS[3])
        stored = read_record(tmp_path)
        assert [link.sequence for link in stored.links] == [1, 2, 3]
        assert (stored.broken, stored.torn, stored.torn_before) == (None, 0, 1)
        assert half in (tmp_path / "audit-torn.bin").read_bytes()

    @pytest.mark.parametrize("behind", [1, 3])
    def test_a_head_that_a_crash_left_behind_is_no_damage(
        self, tmp_path: Path, behind: int
    ) -> None:
        filled(tmp_path, 2)
        before = (tmp_path / "audit-head.json").read_bytes()
        filled(tmp_path, behind)
        (tmp_path / "audit-head.json").write_bytes(before)
        assert damage_in(tmp_path) is None
        filled(tmp_path, 1)
        assert damage_in(tmp_path) is None
        head = json.loads((tmp_path / "audit-head.json").read_text())
        assert head["sequence"] == 2 + behind + 1

    def test_a_crash_before_the_very_first_line_is_no_damage(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class KilledError(BaseException):
            pass

        def die(*_: object) -> None:
            raise KilledError

        with monkeypatch.context() as patched:
            patched.setattr(audit_file.RecordWriter, "_write", die)
            with pytest.raises(KilledError):
                filled(tmp_path, 1)
        assert damage_in(tmp_path) is None
        filled(tmp_path, 1)
        assert damage_in(tmp_path) is None

    @pytest.mark.parametrize("failing", ["line", "head"])
    def test_a_full_disk_is_a_sentence_and_nothing_is_lost(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
    ) -> None:
        log = opened(tmp_path)
        log.record(Direction.OUT, Kind.BALLOT, "tumour", 1, 94, DIGESTS[1])
        with monkeypatch.context() as patched:

            def full(*_: object) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

            if failing == "line":
                patched.setattr(os, "fsync", full)
            else:
                patched.setattr(os, "pwrite", full)
            for _ in range(3):
                with pytest.raises(ConfigurationError, match="No space left on device"):
                    log.record(Direction.OUT, Kind.BALLOT, "tumour", 2, 94, DIGESTS[2])
        assert damage_in(tmp_path) is None, "also while the disk is full"
        log.record(Direction.OUT, Kind.BALLOT, "tumour", 2, 94, DIGESTS[2])
        assert damage_in(tmp_path) is None
        assert damage_in(tmp_path) is None
        assert [link.sequence for link in read_record(tmp_path).links][:2] == [1, 2]

    def test_a_record_cut_while_the_agent_runs_stops_it(self, tmp_path: Path) -> None:
        filled(tmp_path, 3)
        log = opened(tmp_path)
        lines = record_file(tmp_path).read_bytes().splitlines(keepends=True)
        record_file(tmp_path).write_bytes(b"".join(lines[:2]))
        with pytest.raises(ConfigurationError, match="cut short"):
            log.record(Direction.OUT, Kind.BALLOT, "tumour", 4, 94, DIGESTS[4])


Lines = list[bytes]
EDITED_LINE = b'"round":3'


def swapped(lines: Lines) -> Lines:
    return [lines[0], lines[2], lines[1], *lines[3:]]


def renumbered_without_the_second(lines: Lines) -> Lines:
    kept = [json.loads(line) for line in (lines[0], *lines[2:])]
    for number, values in enumerate(kept, start=1):
        values["sequence"] = number
    return [_canonical(values) for values in kept]


def with_a_forged_second(lines: Lines) -> Lines:
    first = json.loads(lines[0])
    entry = {**first["entry"], "round": 8}
    forged = {"entry": entry, "previous": first["hash"], "sequence": 2}
    forged["hash"] = link_hash(first["hash"], entry)
    return [lines[0], _canonical(forged), *lines[1:]]


def rewritten(lines: Lines) -> Lines:
    """Every hash from the third entry on is made to fit another content."""
    made, previous = [], "0" * 64
    for values in map(json.loads, lines):
        if values["sequence"] == 3:
            values["entry"]["bytes"] = 12
        values |= {"previous": previous, "hash": link_hash(previous, values["entry"])}
        previous = values["hash"]
        made.append(_canonical(values))
    return made


def _canonical(values: dict[str, object]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode() + b"\n"


TAMPERING: dict[str, tuple[Callable[[Lines], Lines], tuple[int, Damage]]] = {
    "a value edited": (
        lambda lines: [line.replace(b'"round":3', b'"round":4') for line in lines],
        (3, Damage.EDITED),
    ),
    "a key added outside the entry": (
        lambda lines: [*lines[:2], lines[2].replace(b'{"entry"', b'{"a":1,"entry"'), *lines[3:]],
        (3, Damage.EDITED),
    ),
    "white space added": (
        lambda lines: [*lines[:2], lines[2].replace(b'"round":', b'"round": '), *lines[3:]],
        (3, Damage.EDITED),
    ),
    "a line made unreadable": (
        lambda lines: [*lines[:2], b"\x00\xff\n", *lines[3:]],
        (3, Damage.EDITED),
    ),
    "a line deleted": (lambda lines: [lines[0], *lines[2:]], (2, Damage.REMOVED)),
    "a line deleted and the rest renumbered": (
        renumbered_without_the_second,
        (2, Damage.REMOVED),
    ),
    "the first lines deleted": (lambda lines: lines[2:], (1, Damage.REMOVED)),
    "two lines swapped": (swapped, (2, Damage.MOVED)),
    "the last line moved to the front": (
        lambda lines: [lines[-1], *lines[:-1]],
        (1, Damage.MOVED),
    ),
    "the end cut off": (lambda lines: lines[:3], (4, Damage.CUT_SHORT)),
    "half of the last line cut off": (
        lambda lines: [*lines[:4], lines[4][:30]],
        (5, Damage.CUT_SHORT),
    ),
    "everything deleted": (lambda lines: [], (1, Damage.CUT_SHORT)),
    "a line inserted": (with_a_forged_second, (2, Damage.INSERTED)),
    "a line repeated": (lambda lines: [*lines[:2], lines[1], *lines[2:]], (3, Damage.INSERTED)),
    "all hashes made to fit": (rewritten, (5, Damage.REWRITTEN)),
}


class TestTampering:
    @pytest.mark.parametrize("name", TAMPERING)
    def test_is_found_and_named(self, tmp_path: Path, name: str) -> None:
        tamper, expected = TAMPERING[name]
        filled(tmp_path)
        lines = record_file(tmp_path).read_bytes().splitlines(keepends=True)
        record_file(tmp_path).write_bytes(b"".join(tamper(lines)))
        assert damage_in(tmp_path) == expected

    @pytest.mark.parametrize("entries", [1, 5])
    @pytest.mark.parametrize("how", ["deleted", "damaged"])
    def test_a_lost_head_is_found(self, tmp_path: Path, entries: int, how: str) -> None:
        filled(tmp_path, entries)
        head = tmp_path / "audit-head.json"
        if how == "deleted":
            head.unlink()
        else:
            head.write_text("{}")
        assert damage_in(tmp_path) == (entries, Damage.REMOVED)

    def test_nothing_leaves_behind_a_broken_record(self, tmp_path: Path) -> None:
        filled(tmp_path)
        lines = record_file(tmp_path).read_bytes().splitlines(keepends=True)
        record_file(tmp_path).write_bytes(b"".join(lines[:3]))
        with pytest.raises(ConfigurationError, match="broken at entry 4") as caught:
            opened(tmp_path)
        assert str(tmp_path) in caught.value.hint


@dataclass
class Coordinator:
    """Answers a silo's calls as told: each answer is a receipt's signer or an error."""

    authority: Authority
    identity: object
    answers: list[Signer | ConsiliumError] = field(default_factory=list)
    held: dict[int, ballot_pb2.Receipt] = field(default_factory=dict)
    signer_error: ConsiliumError | None = None
    asked_for_signers: int = 0
    present: Signer | None = None

    def receipt_of(self, header: ballot_pb2.BallotHeader, signer: Signer) -> ballot_pb2.Receipt:
        statement = Statement(
            "rhine-clinics", header.task, header.round, "north", header.digest, NOW
        )
        receipt = ballot_pb2.Receipt(
            task=header.task,
            round=header.round,
            silo="north",
            digest=header.digest,
            signer=signer.fingerprint,
            signature=signer.sign(statement),
        )
        receipt.accepted_at.FromDatetime(NOW)
        return receipt

    async def cast(self, header: ballot_pb2.BallotHeader, ballot: bytes) -> ballot_pb2.Receipt:
        answer = self.answers.pop(0)
        if isinstance(answer, ConsiliumError):
            raise answer
        return self.receipt_of(header, answer)

    async def receipt(self, task: str, number: int) -> ballot_pb2.Receipt:
        if number not in self.held:
            raise Refusal(RECEIPT_UNKNOWN, name="north", task=task, round=number)
        return self.held[number]

    async def signer(self, fingerprint: str) -> bytes:
        self.asked_for_signers += 1
        if self.signer_error is not None:
            raise self.signer_error
        assert self.present is not None
        return self.present.certificate_pem


@dataclass(frozen=True)
class Us:
    authorities_pem: bytes
    consortium: str = "rhine-clinics"
    name: str = "north"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority", "rhine-clinics", NOW)


@pytest.fixture
def signer(authority: Authority) -> Signer:
    issued = authority.issue_server(["localhost"], timedelta(days=90), NOW)
    return Signer(issued.key_pem, issued.certificate_pem)


@pytest.fixture
def coordinator(authority: Authority, signer: Signer) -> Coordinator:
    return Coordinator(authority, Us(authority.certificate_pem), present=signer)


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    return tmp_path / "agent"


def sender_to(coordinator: Coordinator, agent: Path) -> tuple[BallotSender, AuditLog]:
    log = opened(agent)
    return BallotSender(coordinator, log), log  # type: ignore[arg-type]


def header(number: int) -> ballot_pb2.BallotHeader:
    return ballot_pb2.BallotHeader(task="tumour", round=number, digest=DIGESTS[number])


def cast(sender: BallotSender, number: int) -> BallotOutcome:
    return asyncio.run(sender.cast(header(number), bytes([number])))


def report_of(agent: Path) -> Report:
    return verify_record(read_record(agent), SignerFolder(agent / "signers"), "north")


def unreachable() -> Refusal:
    return Refusal(UNREACHABLE, address="localhost:1", why="it is night")


class TestCasting:
    def test_a_ballot_is_recorded_before_it_leaves(
        self, coordinator: Coordinator, agent: Path
    ) -> None:
        coordinator.answers = [unreachable()]
        sender, _ = sender_to(coordinator, agent)
        with pytest.raises(Refusal):
            cast(sender, 1)
        assert [(m.direction, m.kind, m.digest) for m in read_entries(agent)] == [
            (Direction.OUT, Kind.BALLOT, DIGESTS[1])
        ]

    def test_a_ballot_that_cannot_be_recorded_does_not_leave(
        self, coordinator: Coordinator, agent: Path, signer: Signer
    ) -> None:
        coordinator.answers = [signer]
        sender, _ = sender_to(coordinator, agent)
        agent.mkdir()
        (agent / "audit.jsonl").mkdir()
        with pytest.raises(ConfigurationError, match="cannot be written"):
            cast(sender, 1)
        assert coordinator.answers == [signer], "never asked"

    def test_a_proven_receipt_is_kept_with_its_proof(
        self, coordinator: Coordinator, agent: Path, signer: Signer, authority: Authority
    ) -> None:
        coordinator.answers = [signer, signer]
        sender, _ = sender_to(coordinator, agent)
        with capture_logs() as logs:
            assert cast(sender, 1) is BallotOutcome.ACCEPTED
            assert cast(sender, 2) is BallotOutcome.ACCEPTED
        assert coordinator.asked_for_signers == 1, "the certificate is remembered"
        assert not [line for line in logs if line["log_level"] == "error"]
        report = report_of(agent)
        assert (report.ballots, report.proven, report.unproven) == (2, 2, ())
        assert report.without_receipt == ()
        assert rows(read_record(agent))[1]["receipt_authority"] == authority.fingerprint

    def test_every_attempt_is_an_entry_and_one_receipt_answers_them_all(
        self, coordinator: Coordinator, agent: Path, signer: Signer
    ) -> None:
        coordinator.answers = [unreachable(), unreachable(), signer]
        sender, _ = sender_to(coordinator, agent)
        for _ in range(2):
            with pytest.raises(Refusal):
                cast(sender, 1)
        cast(sender, 1)
        assert [m.kind for m in read_entries(agent)] == [Kind.BALLOT] * 3 + [Kind.RECEIPT]
        report = report_of(agent)
        assert (report.ballots, report.proven, report.without_receipt) == (1, 1, ())

    @pytest.mark.parametrize(
        ("fault", "outcome"),
        [
            (ROUND_CLOSED, BallotOutcome.ROUND_CLOSED),
            (NOT_A_PARTICIPANT, BallotOutcome.NOT_A_PARTICIPANT),
            (BALLOT_CONFLICT, BallotOutcome.CONFLICT),
            (BALLOT_LABEL_SPACE, BallotOutcome.LABEL_SPACE),
            (PRIVACY_TOO_WEAK, BallotOutcome.PRIVACY_TOO_WEAK),
        ],
    )
    def test_a_refusal_is_recorded_and_the_ballot_named(
        self, coordinator: Coordinator, agent: Path, fault: Fault, outcome: BallotOutcome
    ) -> None:
        words = {"task": "tumour", "round": 1, "name": "north", "why": "it is so"}
        refusal = Refusal(fault, **words)
        coordinator.answers = [refusal]
        sender, log = sender_to(coordinator, agent)
        assert cast(sender, 1) is outcome
        (ballot,) = report_of(agent).without_receipt
        assert (ballot.round, ballot.digest, ballot.refused) == (1, DIGESTS[1], True)
        assert log.unanswered("tumour") == {}

    def test_a_ballot_that_met_a_paused_task_is_cast_again_in_the_same_round(
        self, coordinator: Coordinator, agent: Path, signer: Signer
    ) -> None:
        paused = Refusal(TASK_NOT_RUNNING, task="tumour", status="paused")
        coordinator.answers = [paused, signer]
        sender, log = sender_to(coordinator, agent)
        with pytest.raises(Refusal):
            cast(sender, 1)
        assert log.unanswered("tumour") == {1: DIGESTS[1]}
        assert cast(sender, 1) is BallotOutcome.ACCEPTED
        assert report_of(agent).without_receipt == ()

    @pytest.mark.parametrize("trouble", ["unknown", "unreachable", "foreign", "wrong ballot"])
    def test_a_receipt_that_proves_nothing_is_kept_told_and_lets_the_round_go_on(
        self, coordinator: Coordinator, agent: Path, signer: Signer, tmp_path: Path, trouble: str
    ) -> None:
        coordinator.answers = [signer]
        if trouble == "unknown":
            coordinator.signer_error = Refusal(SIGNER_UNKNOWN, fingerprint=signer.fingerprint)
        elif trouble == "unreachable":
            coordinator.signer_error = unreachable()
        elif trouble == "foreign":
            stranger = Authority.create(tmp_path / "theirs", "rhine-clinics", NOW)
            coordinator.identity = Us(stranger.certificate_pem)
        else:
            coordinator.identity = replace(coordinator.identity, name="south")  # type: ignore[type-var]
        sender, log = sender_to(coordinator, agent)
        with capture_logs() as logs:
            assert cast(sender, 1) is BallotOutcome.ACCEPTED
        assert [line["event"] for line in logs if line["log_level"] == "error"]
        assert read_entries(agent)[-1].kind is Kind.RECEIPT
        assert log.unanswered("tumour") == {}
        (unproven,) = report_of(agent).unproven
        assert unproven.sequence == 2
        assert report_of(agent).broken is None

    def test_a_receipt_is_proven_later_once_its_signer_is_known(
        self, coordinator: Coordinator, agent: Path, signer: Signer
    ) -> None:
        coordinator.answers = [signer, signer]
        coordinator.signer_error = unreachable()
        sender, _ = sender_to(coordinator, agent)
        cast(sender, 1)
        assert report_of(agent).proven == 0
        coordinator.signer_error = None
        cast(sender, 2)
        assert report_of(agent).proven == 2


class TestClaiming:
    """The agent was killed after its ballot left and before the receipt was recorded."""

    def test_the_receipt_is_fetched_after_the_restart(
        self, coordinator: Coordinator, agent: Path, signer: Signer
    ) -> None:
        coordinator.answers = [unreachable()]
        sender, _ = sender_to(coordinator, agent)
        with pytest.raises(Refusal):
            cast(sender, 1)
        coordinator.held[1] = coordinator.receipt_of(header(1), signer)
        sender, log = sender_to(coordinator, agent)
        assert log.unanswered("tumour") == {1: DIGESTS[1]}
        assert asyncio.run(sender.recover_receipts("tumour", open_round=2)) == {1}
        assert asyncio.run(sender.recover_receipts("tumour", open_round=2)) == set(), "asked once"
        assert report_of(agent).proven == 1

    def test_a_ballot_of_a_past_round_that_never_arrived_is_closed_as_refused(
        self, coordinator: Coordinator, agent: Path
    ) -> None:
        filled(agent, 1)
        sender, log = sender_to(coordinator, agent)
        assert asyncio.run(sender.recover_receipts("tumour", open_round=2)) == set()
        assert log.unanswered("tumour") == {}
        assert report_of(agent).without_receipt[0].refused

    def test_a_ballot_of_the_open_round_that_never_arrived_is_left_to_be_cast_again(
        self, coordinator: Coordinator, agent: Path
    ) -> None:
        filled(agent, 1)
        sender, log = sender_to(coordinator, agent)
        assert asyncio.run(sender.recover_receipts("tumour", open_round=1)) == set()
        assert log.unanswered("tumour") == {1: DIGESTS[1]}

    def test_other_tasks_are_left_alone(self, coordinator: Coordinator, agent: Path) -> None:
        filled(agent, 1)
        sender, _ = sender_to(coordinator, agent)
        assert asyncio.run(sender.recover_receipts("heart", open_round=0)) == set()
        assert len(read_entries(agent)) == 1


class TestCommands:
    @pytest.fixture
    def home(self, tmp_path: Path, coordinator: Coordinator, signer: Signer) -> Path:
        home = tmp_path / "silo"
        coordinator.answers = [signer, unreachable()]
        sender, _ = sender_to(coordinator, home / "agent")
        cast(sender, 1)
        with pytest.raises(Refusal):
            cast(sender, 2)
        return home

    def test_verify_says_what_is_there_and_which_ballot_has_no_receipt(self, home: Path) -> None:
        result = CliRunner().invoke(app, ["verify", "--home", str(home)])
        assert result.exit_code == 0, result.output
        assert "3 entries" in result.output
        assert "1 receipts verified" in result.output
        assert "no receipt: round 2 of tumour, entry 3, no answer yet" in result.output

    def test_verify_fails_on_a_broken_chain_and_says_where(self, home: Path) -> None:
        path = record_file(home / "agent")
        path.write_bytes(path.read_bytes().replace(b'"bytes":1,', b'"bytes":2,', 1))
        result = CliRunner().invoke(app, ["verify", "--home", str(home)])
        assert isinstance(result.exception, Refusal)
        assert result.exception.sentence == (
            "The audit record is broken at entry 1: entry 1 was edited after it was written."
        )
        told = CliRunner().invoke(app, ["verify", "--home", str(home), "--json"])
        assert told.exit_code == 1
        assert json.loads(told.output)["broken"]["damage"] == "edited"

    def test_verify_fails_on_a_receipt_without_proof(self, home: Path) -> None:
        for path in (home / "agent" / "signers").iterdir():
            path.unlink()
        result = CliRunner().invoke(app, ["verify", "--home", str(home)])
        assert isinstance(result.exception, Refusal)
        assert "receipt at entry 2 proves nothing" in result.exception.sentence

    def test_list_shows_the_newest(self, home: Path) -> None:
        arguments = ["list", "--home", str(home), "--last", "2", "--json"]
        listed = json.loads(CliRunner().invoke(app, arguments).output)["entries"]
        assert [entry["kind"] for entry in listed] == ["receipt", "ballot"]
        assert "ballot" in CliRunner().invoke(app, ["list", "--home", str(home)]).output

    def test_an_export_holds_all_a_third_party_needs_to_verify_a_receipt(
        self, home: Path, signer: Signer, tmp_path: Path
    ) -> None:
        out = tmp_path / "record.json"
        arguments = ["export", "--home", str(home), "--format", "json", "--out", str(out)]
        assert CliRunner().invoke(app, arguments).exit_code == 0
        row = json.loads(out.read_text())["entries"][1]
        statement = Statement(
            row["receipt_consortium"],
            row["task"],
            row["round"],
            row["receipt_silo"],
            row["digest"],
            datetime.fromisoformat(row["receipt_accepted_at"]),
        )
        assert statement == Statement("rhine-clinics", "tumour", 1, "north", DIGESTS[1], NOW)
        assert row["receipt_signer"] == signer.fingerprint

    def test_an_export_for_a_spreadsheet_has_a_line_per_entry(self, home: Path) -> None:
        lines = CliRunner().invoke(app, ["export", "--home", str(home)]).output.splitlines()
        assert lines[0].startswith("sequence,time,direction,kind,task,round,bytes,digest")
        assert len(lines) == 4
