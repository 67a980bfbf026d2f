"""Both records of a real federation: they agree, tampering is found, and neither holds a label."""

from __future__ import annotations

import base64
import contextlib
import csv
import io
import json
import re
import shutil
import signal
import sqlite3
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coordinator_process import await_port, command, consilium, environment
from patience import PATIENCE
from service import eventually, free_ports

from silo_agent.shared.home import SiloHome
from wire.ballot import BallotShape, Encoding, unpack

LABELS = ("zzmalignantzz", "zzbenignzz")
ROWS = 211
ROUNDS = 2
SILOS = ("north", "south")


@dataclass
class Federation:
    """A coordinator and two silos, every process at debug level."""

    folder: Path
    coordinator: Path
    metrics_ports: dict[str, int]
    running: dict[str, subprocess.Popen[bytes]]

    def start(self, name: str, *arguments: object, crash_at: str = "") -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                command(*arguments, "--log-level", "debug"),
                env=environment() | {"CONSILIUM_CRASH_AT": crash_at, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def run_silo(self, name: str, crash_at: str = "") -> None:
        arguments = ("agent", "run", "--home", self.home(name))
        self.start(name, *arguments, "--metrics-port", self.metrics_ports[name], crash_at=crash_at)

    def home(self, silo: str) -> Path:
        return self.folder / silo

    def admin(self, *arguments: object, status: int | None = 0) -> Any:
        return consilium(*arguments, "--home", self.coordinator, status=status)

    def until_told(self, name: str, event: str) -> None:
        log = self.folder / f"{name}.log"
        eventually(f"{event} of {name}", lambda: f'"event": "{event}"' in log.read_text())

    def movements(self, silo: str) -> list[dict[str, Any]]:
        told = consilium("agent", "traffic", "--home", self.home(silo), "--json").json()
        return list(told["movements"])

    def silo_report(self, silo: str) -> dict[str, Any]:
        told = consilium("agent", "audit", "verify", "--home", self.home(silo), "--json")
        return dict(told.json())

    def page(self, name: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_ports[name]}/metrics") as page:
            return str(page.read(), "utf-8")

    def end(self) -> None:
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
            process.kill()
            process.wait()
        for log in sorted(self.folder.glob("*.log")):
            print(f"----- {log.name}\n{log.read_text(errors='replace')}")


def private_values(silo: str) -> np.ndarray:
    """Numbers that occur nowhere else: no public value has these digits."""
    offset = 987654.0 if silo == "north" else 345678.0
    return offset + np.arange(60) * 7.125


def write_silo(home: Path, silo: str) -> None:
    home.mkdir(parents=True, exist_ok=True)
    points = np.random.default_rng(len(silo)).normal(size=60)
    lines = [
        f"zzpatientzz{row},{point:.4f},{value:.3f},{LABELS[int(point > 0.4)]}"
        for row, (point, value) in enumerate(zip(points, private_values(silo), strict=True))
    ]
    (home / "data.csv").write_text("\n".join(["id,a,b,outcome", *lines]) + "\n")
    (home / "silo.yaml").write_text(
        "data: {path: data.csv, label: outcome, patient_id: id}\n"
        "model: decision_tree\n"
        "policy: {approve: within_limits, max_rounds: 9}\n"
    )


def write_task(folder: Path, name: str) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(
        f"name: {name}\n"
        "public_set: wards\n"
        f"labels: [{', '.join(LABELS)}]\n"
        f"rounds: {{max_rounds: {ROUNDS}, deadline: 1h, grace: 1h, quorum: 2, stop_patience: 0}}\n"
    )
    return path


@contextlib.contextmanager
def federation(folder: Path) -> Iterator[Federation]:
    home = folder / "coordinator"
    port, enrolment, *metrics = free_ports(5)
    ports = ("--port", port, "--enrolment-port", enrolment, "--metrics-port", metrics[0])
    consilium("coordinator", "init", "--home", home, "--listen", "127.0.0.1", *ports)
    made = Federation(
        folder, home, dict(zip(("coordinator", *SILOS), metrics, strict=True)), running={}
    )
    try:
        made.start("coordinator", "coordinator", "serve", "--home", home)
        await_port(port)
        await_port(enrolment)
        points = np.random.default_rng(0).normal(size=(ROWS, 2))
        rows = [f"{a:.4f},{b:.4f}" for a, b in points]
        (folder / "wards.csv").write_text("\n".join(["a,b", *rows]) + "\n")
        made.admin("public-set", "add", "wards", folder / "wards.csv")
        for silo in SILOS:
            token = made.admin("silo", "register", silo, "--json").json()["join_token"]
            consilium("agent", "join", token, "--home", made.home(silo))
            write_silo(made.home(silo), silo)
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A federation after its task has ended; north was killed after its first ballot was answered."""
    with federation(tmp_path_factory.mktemp("federation")) as made:
        made.admin("task", "create", "-f", write_task(made.folder, "tumour"))
        made.run_silo("north", crash_at="ballot-answered")
        made.run_silo("south")
        made.admin("task", "start", "tumour")
        assert made.running["north"].wait(PATIENCE) == -signal.SIGKILL
        made.run_silo("north")
        for silo in SILOS:
            made.until_told(silo, "task_finished")
        # Leaves the head behind that later verifications compare with.
        made.admin("audit", "verify")
        yield made


class TestBothRecords:
    def test_are_whole(self, finished: Federation) -> None:
        assert finished.admin("audit", "verify", "--json").json()["whole"]
        for silo in SILOS:
            report = finished.silo_report(silo)
            assert report["whole"]
            assert report["broken"] is None

    def test_every_ballot_has_a_proven_receipt_also_one_whose_answer_a_crash_swallowed(
        self, finished: Federation
    ) -> None:
        for silo in SILOS:
            report = finished.silo_report(silo)
            assert report["ballots"] == report["proven"] == ROUNDS
            assert report["without_receipt"] == report["unproven"] == []
        assert "receipt_recovered" in (finished.folder / "north.log").read_text()

    def test_agree_on_what_left_and_what_was_published(self, finished: Federation) -> None:
        entries = finished.admin("audit", "list", "--last", "500", "--json").json()["entries"]
        accepted = {
            (entry["actor"], json.loads(entry["details"])["round"]): json.loads(entry["details"])
            for entry in entries
            if entry["act"] == "ballot_accepted"
        }
        assert len(accepted) == ROUNDS * len(SILOS)
        published = {
            json.loads(entry["details"])["round"]: json.loads(entry["details"])["digest"]
            for entry in entries
            if entry["act"] == "consensus_published"
        }
        for silo in SILOS:
            moves = finished.movements(silo)
            sent = [move for move in moves if move["direction"] == "out"]
            assert {move["kind"] for move in sent} == {"ballot"}, "nothing else leaves"
            for move in sent:
                theirs = accepted[f"silo/{silo}", move["round"]]
                assert (theirs["digest"], theirs["bytes"]) == (move["digest"], move["bytes"])
            came = [move for move in moves if move["kind"] == "consensus"]
            assert came
            for move in came:
                assert move["digest"] == published[move["round"]]

    def test_can_be_exported_for_an_officer(self, finished: Federation, tmp_path: Path) -> None:
        told = finished.admin("audit", "export", "--format", "csv")
        rows = list(csv.DictReader(io.StringIO(told.out)))
        listed = finished.admin("audit", "list", "--last", "500", "--json").json()["entries"]
        assert [row["hash"] for row in rows] == [entry["hash"] for entry in listed]
        out = tmp_path / "north.json"
        arguments = ("--home", finished.home("north"), "--format", "json", "--out", out)
        consilium("agent", "audit", "export", *arguments)
        exported = json.loads(out.read_text())["entries"]
        receipts = [row for row in exported if row["kind"] == "receipt"]
        assert len(receipts) == ROUNDS
        authority = finished.coordinator / "authority"
        assert authority.is_dir()
        assert all(len(row["receipt_authority"]) == 64 for row in receipts)

    def test_a_receipt_verifies_with_openssl_alone(
        self, finished: Federation, tmp_path: Path
    ) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not installed")
        told = consilium("agent", "audit", "export", "--home", finished.home("north"))
        row = next(r for r in csv.DictReader(io.StringIO(told.out)) if r["kind"] == "receipt")
        accepted = np.datetime64(row["receipt_accepted_at"].removesuffix("+00:00"), "us")
        statement = [
            "consilium/receipt/v1",
            row["receipt_consortium"],
            row["task"],
            row["round"],
            row["receipt_silo"],
            row["digest"],
            str(accepted.astype(int)),
        ]
        (tmp_path / "statement").write_text("".join(f"{line}\n" for line in statement))
        (tmp_path / "signature").write_bytes(bytes.fromhex(row["receipt_signature"]))
        signer = finished.home("north") / "agent" / "signers" / f"{row['receipt_signer']}.pem"
        public = subprocess.run(
            ["openssl", "x509", "-in", signer, "-noout", "-pubkey"], capture_output=True, check=True
        ).stdout
        (tmp_path / "public.pem").write_bytes(public)
        files = ("-verify", "public.pem", "-signature", "signature", "statement")
        done = subprocess.run(
            ["openssl", "dgst", "-sha256", *files], cwd=tmp_path, capture_output=True, text=True
        )
        assert "Verified OK" in done.stdout, done.stderr


class TestNoLabels:
    """The names of the classes are public in the task's definition, and nowhere else."""

    def test_neither_logs_nor_audit_nor_metrics_hold_a_label_a_patient_or_a_value(
        self, said: dict[str, bytes]
    ) -> None:
        private = {label.encode() for label in LABELS} | {b"zzpatientzz"}
        private |= {f"{v:.3f}"[:8].encode() for silo in SILOS for v in private_values(silo)}
        for source, text in said.items():
            for word in private:
                assert word not in text, (source, around(text, word))

    def test_nor_a_ballots_bits_in_any_spelling(
        self, finished: Federation, said: dict[str, bytes]
    ) -> None:
        for silo, ballot in ballots(finished):
            spellings = {
                ballot,
                ballot.hex().encode(),
                base64.b64encode(ballot).rstrip(b"="),
                repr(ballot)[2:-1].encode(),
                json.dumps(list(ballot))[1:-1].encode(),
            }
            for source, text in said.items():
                for spelling in spellings:
                    assert spelling not in text, (silo, source)

    def test_nor_how_often_a_class_was_voted(
        self, finished: Federation, said: dict[str, bytes]
    ) -> None:
        counts: set[int] = set()
        for _, ballot in ballots(finished):
            labels = unpack(ballot, BallotShape(ROWS, len(LABELS), Encoding.INDEX))
            counts |= set(np.bincount(labels, minlength=len(LABELS)).tolist())
        assert len(counts) > 1
        assert not counts & {0, 54, ROWS}, "the ballots of this test must have telling counts"
        for source, text in said.items():
            if source.endswith("log"):
                found = numbers_in([json.loads(line) for line in text.splitlines()])
            elif source.endswith("metrics"):
                lines = re.findall(rb"^consilium_.* ([0-9.e+]+)$", text, re.MULTILINE)
                found = {float(value) for value in lines}
            else:
                continue
            assert found
            assert not counts & found, source

    def test_the_search_would_find_one(self, finished: Federation) -> None:
        """The label space is in the task's definition, so looking there finds it."""
        with sqlite3.connect(finished.coordinator / "coordinator.db") as database:
            (definition,) = database.execute("SELECT definition FROM tasks").fetchone()
        assert all(label in definition for label in LABELS)
        assert all(len(ballot) == 54 for _, ballot in ballots(finished))


@pytest.fixture(scope="module")
def said(finished: Federation) -> dict[str, bytes]:
    """Every place where the two sides write down what happened, but the task's own definition."""
    made = finished
    said = {log.name: log.read_bytes() for log in made.folder.glob("*.log")}
    for name in ("coordinator", *SILOS):
        said[f"{name} metrics"] = made.page(name).encode()
    for silo in SILOS:
        agent = SiloHome(made.home(silo)).agent
        said |= {
            f"{silo} {path.relative_to(agent)}": path.read_bytes()
            for path in agent.rglob("*")
            if path.is_file() and path.name != "lock"
        }
        for told in (("traffic",), ("audit", "list"), ("audit", "verify"), ("audit", "export")):
            said[f"{silo} {' '.join(told)}"] = consilium(
                "agent", *told, "--home", made.home(silo)
            ).out.encode()
    for told in (("audit", "list"), ("audit", "verify"), ("audit", "export"), ("silo", "list")):
        said[" ".join(told)] = made.admin(*told).out.encode()
    with sqlite3.connect(made.coordinator / "coordinator.db") as database:
        for table in ("audit", "audit_head", "silos", "certificates", "signers"):
            rows = database.execute(f"SELECT * FROM {table}").fetchall()
            said[f"table {table}"] = repr(rows).encode()
    assert all(said.values())
    return said


def ballots(made: Federation) -> list[tuple[str, bytes]]:
    with sqlite3.connect(made.coordinator / "coordinator.db") as database:
        rows = database.execute("SELECT silo, payload FROM ballots").fetchall()
    assert len(rows) == ROUNDS * len(SILOS)
    return [(str(silo), bytes(payload)) for silo, payload in rows]


def numbers_in(value: object) -> set[float]:
    """Every number in a parsed JSON document."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return {number for one in value for number in numbers_in(one)}
    return {float(value)} if isinstance(value, int | float) else set()


def around(text: bytes, found: bytes) -> bytes:
    at = text.find(found)
    return text[max(0, at - 100) : at + 100]


@contextlib.contextmanager
def tampered(made: Federation, *statements: str) -> Iterator[None]:
    """SQL behind the coordinator's back, undone afterwards."""
    database = sqlite3.connect(made.coordinator / "coordinator.db")
    tables = {
        name: database.execute(f"SELECT * FROM {name}").fetchall()
        for name in ("audit", "audit_head")
    }
    with database:
        for statement in statements:
            database.execute(statement)
    try:
        yield
    finally:
        with database:
            for name, rows in tables.items():
                database.execute(f"DELETE FROM {name}")
                marks = ", ".join("?" * len(rows[0]))
                database.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
        database.close()


HEAD_OF_FIVE = (
    "UPDATE audit_head SET sequence = 5, hash = (SELECT hash FROM audit WHERE sequence = 5)"
)


class TestTamperingWithTheCoordinator:
    @pytest.mark.parametrize(
        ("statements", "sequence", "damage"),
        [
            (["UPDATE audit SET actor = 'admin/nobody' WHERE sequence = 4"], 4, "edited"),
            (["UPDATE audit SET details = 'rubbish' WHERE sequence = 4"], 4, "edited"),
            (["DELETE FROM audit WHERE sequence = 4"], 4, "removed"),
            (["DELETE FROM audit WHERE sequence > 5"], 6, "cut short"),
            (["DELETE FROM audit WHERE sequence > 5", HEAD_OF_FIVE], 6, "cut short"),
            (
                [
                    "UPDATE audit SET sequence = 99 WHERE sequence = 4",
                    "UPDATE audit SET sequence = 4 WHERE sequence = 5",
                    "UPDATE audit SET sequence = 5 WHERE sequence = 99",
                ],
                4,
                "moved",
            ),
        ],
    )
    def test_an_admin_finds_it_and_is_told_where(
        self, finished: Federation, statements: list[str], sequence: int, damage: str
    ) -> None:
        with tampered(finished, *statements):
            told = finished.admin("audit", "verify", "--json", status=1).json()
        assert (told["broken"]["sequence"], told["broken"]["damage"]) == (sequence, damage)

    def test_it_is_told_in_a_sentence_and_forgotten_once_the_record_is_restored(
        self, finished: Federation
    ) -> None:
        with tampered(finished, "DELETE FROM audit WHERE sequence = 4"):
            told = finished.admin("audit", "verify", status=1)
        assert "broken at entry 4: entry 4 was removed" in told.err
        assert finished.admin("audit", "verify").out.startswith("ok")


class TestTamperingWithTheSilo:
    def test_an_officer_finds_it_and_the_agent_will_not_start(
        self, finished: Federation, tmp_path: Path
    ) -> None:
        home = tmp_path / "south"
        shutil.copytree(finished.home("south"), home, ignore=shutil.ignore_patterns("exchange"))
        record = home / "agent" / "audit.jsonl"
        lines = record.read_bytes().splitlines(keepends=True)
        record.write_bytes(b"".join(lines[:-2]))
        last = len(lines) - 1
        told = consilium("agent", "audit", "verify", "--home", home, status=1)
        assert f"broken at entry {last}" in told.err
        refused = consilium("agent", "relay", "--home", home, status=1)
        assert f"broken at entry {last}" in refused.err
        assert "data protection officer" in refused.err
