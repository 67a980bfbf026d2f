"""The command line: JSON for scripts, help for people, and one clear sentence when something is wrong."""

from __future__ import annotations

import io
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from federation import Federation, federation, patients
from patience import PATIENCE
from service import free_port

from wire import __version__
from wire.runtime.cli import application, main

COMMAND = Path(sys.executable).with_name("consilium")
TASK = "name: {name}\npublic_set: wards\nlabels: [benign, malignant]\nrounds: {{quorum: 1}}\n"


@dataclass(frozen=True)
class Outcome:
    """What a command said and how it ended."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        assert self.status == 0, self.err
        assert not self.err
        return json.loads(self.out)

    def says(self, *words: str) -> None:
        """Asserts a refusal: status 1, nothing on standard output, one error with these words."""
        assert self.status == 1, self.out
        assert not self.out
        assert self.err.count("error ") == 1, self.err
        assert "Traceback" not in self.err
        for word in words:
            assert word in self.err, self.err


Consilium = Callable[..., Outcome]


@pytest.fixture
def consilium(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Consilium:
    """Runs a command in this process, as a user whose home folder is empty."""
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("CONSILIUM_HOME", "CONSILIUM_SILO_HOME"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["consilium", *map(str, arguments)])
        out, err = io.StringIO(), io.StringIO()
        status = 0
        with redirect_stdout(out), redirect_stderr(err):
            try:
                main()
            except SystemExit as ended:
                status = int(ended.code or 0)
        return Outcome(status, out.getvalue(), err.getvalue())

    return run


def process(*arguments: object) -> Outcome:
    """Runs a command that serves, or should, in a process of its own."""
    ended = subprocess.run(
        [COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return Outcome(ended.returncode, ended.stdout, ended.stderr)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A coordinator with one joined silo and one running task."""
    with federation(tmp_path_factory.mktemp("cli")) as made:
        made.join("north")
        made.start("trial", rounds={"quorum": 1})
        yield made


@pytest.fixture
def silo(tmp_path: Path) -> Path:
    """The folder of a silo that has data and silo.yaml but has not joined."""
    patients(20, seed=1).to_csv(tmp_path / "data.csv", index=False)
    settings = "data: {path: data.csv, label: diagnosis}\nmodel: decision_tree\n"
    (tmp_path / "silo.yaml").write_text(settings)
    return tmp_path


def every_command(app: typer.Typer, *path: str) -> Iterator[tuple[str, ...]]:
    """Every command below `app`, groups included."""
    for group in app.registered_groups:
        assert group.typer_instance is not None
        below = (*path, group.name) if isinstance(group.name, str) else path
        if below != path:
            yield below
        yield from every_command(group.typer_instance, *below)
    for command in app.registered_commands:
        assert command.callback is not None
        yield *path, command.name or command.callback.__name__.replace("_", "-")


class TestForScripts:
    def test_the_version(self, consilium: Consilium) -> None:
        assert consilium("--version").out.strip() == __version__

    @pytest.mark.parametrize("command", sorted(every_command(application([]))), ids=" ".join)
    def test_every_command_explains_itself(
        self, consilium: Consilium, command: tuple[str, ...]
    ) -> None:
        shown = consilium(*command, "--help")
        assert shown.status == 0
        usage, _, explanation = shown.out.strip().partition("\n")
        assert usage.startswith("Usage:")
        assert " ".join(command) in usage
        # A long command's options stand on a line of their own.
        sentence = explanation.strip().removeprefix("[OPTIONS]").strip()
        assert sentence[0].isupper(), "a sentence says what it is for"

    def test_completion_is_there_for_bash(self) -> None:
        shown = process("--show-completion", "bash")
        assert shown.status == 0
        assert "_consilium_completion" in shown.out

    def test_silos_as_json(self, consilium: Consilium, live: Federation) -> None:
        listed = consilium("silo", "list", "--home", live.home, "--json").json()
        shown = consilium("silo", "show", "north", "--home", live.home, "--json").json()
        assert listed == {"silos": [shown]}
        assert shown["name"] == "north"
        assert shown["status"] == "MEMBER_STATUS_ACTIVE"
        assert shown["connected"] is False
        assert shown.keys() >= {"registered_at", "certificate_expires_at", "activity"}

    def test_a_registration_as_json(self, consilium: Consilium, live: Federation) -> None:
        made = consilium("silo", "register", "late", "--home", live.home, "--json").json()
        assert made.keys() == {"silo", "join_token", "expires_at"}
        assert made["silo"]["status"] == "MEMBER_STATUS_INVITED"
        again = consilium("silo", "register", "late", "--home", live.home, "--replace-token")
        assert again.status == 0
        assert made["join_token"] not in again.out
        consilium("silo", "revoke", "late", "--ballots", "keep", "--home", live.home, "--yes")

    def test_public_sets_as_json(self, consilium: Consilium, live: Federation) -> None:
        file = live.folder / "wards.csv"
        added = consilium("public-set", "add", "wards", file, "--home", live.home, "--json").json()
        assert added["already_held"] is True
        listed = consilium("public-set", "list", "--home", live.home, "--json").json()
        assert listed == {"public_sets": [added["public_set"]]}
        assert added["public_set"].keys() == {
            "digest",
            "name",
            "version",
            "rows",
            "size_bytes",
            "schema",
            "added_at",
        }

    def test_tasks_as_json(self, consilium: Consilium, live: Federation, tmp_path: Path) -> None:
        listed = consilium("task", "list", "--home", live.home, "--json").json()
        shown = consilium("task", "show", "trial", "--home", live.home, "--json").json()
        assert shown.keys() == {"task", "history", "declarations"}
        assert shown["task"] in listed["tasks"]
        assert shown["task"]["status"] == "TASK_STATUS_RUNNING"
        assert shown["task"]["open_round"]["expected"] == ["north"]
        (tmp_path / "task.yaml").write_text(TASK.format(name="other"))
        command = ("task", "create", "-f", tmp_path / "task.yaml", "--home", live.home, "--json")
        made = consilium(*command).json()
        assert made["status"] == "TASK_STATUS_DRAFT"
        assert made.keys() >= {"definition", "digest", "revision"}

    def test_traffic_as_json(self, consilium: Consilium, silo: Path) -> None:
        assert consilium("agent", "traffic", "--home", silo, "--json").json() == {"movements": []}

    def test_listings_are_tables_for_people(self, consilium: Consilium, live: Federation) -> None:
        for command, word in (("silo", "north"), ("public-set", "wards@1"), ("task", "trial")):
            shown = consilium(command, "list", "--home", live.home)
            assert shown.status == 0
            assert word in shown.out


class TestTheAdminIsTold:
    def test_there_is_no_admins_identity(self, consilium: Consilium, tmp_path: Path) -> None:
        for command in (("silo", "list"), ("task", "list"), ("public-set", "list")):
            told = consilium(*command, "--home", tmp_path)
            told.says("no admin's identity", str(tmp_path), "consilium coordinator init")

    def test_the_coordinator_does_not_run(self, consilium: Consilium, tmp_path: Path) -> None:
        port = free_port()
        init = ("coordinator", "init", "--home", tmp_path, "--port", port)
        assert consilium(*init, "--host", "localhost").status == 0
        told = consilium("silo", "list", "--home", tmp_path)
        told.says("UNREACHABLE", f"localhost:{port}", "whether the coordinator runs")

    def test_a_consortium_is_made_once(self, consilium: Consilium, live: Federation) -> None:
        before = (live.home / "coordinator.yaml").read_bytes()
        consilium("coordinator", "init", "--home", live.home).says("already holds a consortium")
        assert (live.home / "coordinator.yaml").read_bytes() == before

    def test_nothing_is_served_before_init(self, consilium: Consilium, tmp_path: Path) -> None:
        told = consilium("coordinator", "serve", "--home", tmp_path)
        told.says(f"no coordinator in {tmp_path}", "consilium coordinator init")

    def test_options_that_make_no_sense(self, consilium: Consilium, tmp_path: Path) -> None:
        told = consilium("coordinator", "init", "--home", tmp_path / "new", "--lease", "soon")
        told.says("`lease`", "'soon' is not a duration", "30s")
        assert not (tmp_path / "new" / "authority").exists()

    @pytest.mark.parametrize("which", ["port", "enrolment-port", "metrics-port"])
    def test_a_port_is_taken(self, consilium: Consilium, tmp_path: Path, which: str) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            ports = {name: free_port() for name in ("port", "enrolment-port", "metrics-port")}
            ports[which] = taken.getsockname()[1]
            options = [word for name, port in ports.items() for word in (f"--{name}", port)]
            init = ("coordinator", "init", "--home", tmp_path, "--listen", "127.0.0.1", *options)
            assert consilium(*init).status == 0
            told = process("coordinator", "serve", "--home", tmp_path)
        told.says(f"Port {ports[which]}", "coordinator.yaml")

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (("rounds:", "round:"), ["`round` is not a known key", "did you mean `rounds`"]),
            (("quorum: 1", "quorum: -1"), ["`rounds.quorum`", "-1"]),
            (("quorum: 1", "deadline: soon"), ["`rounds.deadline`", "not a duration"]),
            (("name: trial", "name: Trial 1"), ["`name`", "not a valid name"]),
            (("labels:", "label:"), ["`labels` is missing", "did you mean `labels`"]),
            (("[benign, malignant]", "[benign]"), ["`labels`"]),
            (("[benign, malignant]", "[benign"), ["task.yaml, line"]),
        ],
        ids=["key", "number", "duration", "name", "missing", "labels", "syntax"],
    )
    def test_task_yaml_is_wrong(
        self, consilium: Consilium, tmp_path: Path, change: tuple[str, str], words: list[str]
    ) -> None:
        (tmp_path / "task.yaml").write_text(TASK.format(name="trial").replace(*change))
        told = consilium("task", "create", "-f", tmp_path / "task.yaml", "--home", tmp_path)
        told.says("task.yaml", *words)

    def test_task_yaml_is_not_there(self, consilium: Consilium, tmp_path: Path) -> None:
        told = consilium("task", "create", "-f", tmp_path / "no.yaml", "--home", tmp_path)
        told.says("no.yaml does not exist")

    def test_a_task_names_a_public_set_nobody_published(
        self, consilium: Consilium, live: Federation, tmp_path: Path
    ) -> None:
        (tmp_path / "task.yaml").write_text(TASK.format(name="stray").replace("wards", "words"))
        told = consilium("task", "create", "-f", tmp_path / "task.yaml", "--home", live.home)
        told.says("no public set words", "consilium public-set list")

    def test_a_task_cannot_be_redefined(
        self, consilium: Consilium, live: Federation, tmp_path: Path
    ) -> None:
        (tmp_path / "task.yaml").write_text(TASK.format(name="trial"))
        told = consilium("task", "create", "-f", tmp_path / "task.yaml", "--home", live.home)
        told.says("trial exists with another definition", "choose another name")

    @pytest.mark.parametrize("verb", ["start", "pause", "show", "watch"])
    def test_a_task_is_unknown(self, consilium: Consilium, live: Federation, verb: str) -> None:
        told = consilium("task", verb, "trail", "--home", live.home)
        told.says("There is no task trail", "consilium task list")

    @pytest.mark.parametrize(
        "verb", [("show",), ("revoke", "--yes", "--ballots", "keep")], ids=" ".join
    )
    def test_a_silo_is_unknown(
        self, consilium: Consilium, live: Federation, verb: tuple[str, ...]
    ) -> None:
        told = consilium("silo", verb[0], "nord", *verb[1:], "--home", live.home)
        told.says("No silo is registered as nord", "consilium silo list")

    def test_a_silo_is_registered_already(self, consilium: Consilium, live: Federation) -> None:
        told = consilium("silo", "register", "north", "--home", live.home)
        told.says("north is already registered (active)", "Choose another name")

    def test_a_name_or_a_lifetime_is_not_one(self, consilium: Consilium, live: Federation) -> None:
        told = consilium("silo", "register", "North Ward", "--home", live.home)
        told.says("'North Ward' is not a valid name", "lower-case letters")
        told = consilium("silo", "register", "new", "--expires", "soon", "--home", live.home)
        told.says("--expires", "'soon' is not a duration")

    @pytest.mark.parametrize("name", ["no.csv", "notes.docx", "broken.parquet"])
    def test_a_file_cannot_be_a_public_set(
        self, consilium: Consilium, live: Federation, tmp_path: Path, name: str
    ) -> None:
        if name != "no.csv":
            (tmp_path / name).write_bytes(b"nonsense")
        told = consilium("public-set", "add", "x", tmp_path / name, "--home", live.home)
        told.says(name)


class TestTheHospitalIsTold:
    @pytest.mark.parametrize("token", ["hello", "consilium-join-1.AAAA", "@no-such-file"])
    def test_the_token_is_no_token(self, consilium: Consilium, silo: Path, token: str) -> None:
        told = consilium("agent", "join", token, "--home", silo)
        told.says("no-such-file cannot be read" if "@" in token else "not a complete join token")
        assert not (silo / "identity" / "certificate.pem").exists()

    def test_a_token_was_used_by_someone_else(
        self, consilium: Consilium, live: Federation, tmp_path: Path
    ) -> None:
        registered = ("silo", "register", "twice", "--home", live.home, "--json")
        token = consilium(*registered).json()["join_token"]
        (tmp_path / "token").write_text(token)
        first = consilium("agent", "join", f"@{tmp_path / 'token'}", "--home", tmp_path / "first")
        assert first.status == 0
        assert "as twice" in first.out
        told = consilium("agent", "join", token, "--home", tmp_path / "second")
        told.says("TOKEN_USED", "twice has already been used", "tell the admin at once")

    @pytest.mark.parametrize("verb", ["run", "relay"])
    def test_it_has_not_joined(self, consilium: Consilium, silo: Path, verb: str) -> None:
        told = consilium("agent", verb, "--home", silo)
        told.says("has not joined yet", "consilium agent join TOKEN")

    def test_the_port_of_its_metrics_is_taken(self, live: Federation, silo: Path) -> None:
        shutil.copytree(live.silos["north"].home.identity, silo / "identity")
        taken = live.metrics_port
        told = process("agent", "run", "--home", silo, "--metrics-port", taken)
        told.says(f"Port {taken}", "--metrics-port")

    def test_silo_yaml_is_wrong_before_anything_runs(
        self, live: Federation, silo: Path, consilium: Consilium
    ) -> None:
        settings = silo / "silo.yaml"
        settings.write_text(settings.read_text().replace("model:", "modle:"))
        told = consilium("agent", "check", "--home", silo)
        assert told.status == 1
        for words in ("`modle` is not a known key", "did you mean `model`", "`model` is missing"):
            assert words in told.out + told.err
        shutil.copytree(live.silos["north"].home.identity, silo / "identity")
        told = process("agent", "run", "--home", silo)
        assert told.status == 1
        assert "did you mean `model`" in told.err
        assert "correct silo.yaml and start again" in told.err
        assert "Traceback" not in told.err

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (("data.csv", "lost.csv"), ["lost.csv"]),
            (("label: diagnosis", "label: diagnose"), ["no column diagnose", "diagnosis"]),
            (("decision_tree", "decision_treee"), ["no learner 'decision_treee'", "decision_tree"]),
            (("decision_tree", "nowhere:Learner"), ["no module nowhere"]),
            (
                ("decision_tree", "{name: decision_tree, parameters: {max_dept: 3}}"),
                ["max_dept", "max_depth"],
            ),
        ],
        ids=["file", "column", "learner", "module", "parameter"],
    )
    def test_check_finds_what_would_fail_later(
        self, consilium: Consilium, silo: Path, change: tuple[str, str], words: list[str]
    ) -> None:
        settings = silo / "silo.yaml"
        settings.write_text(settings.read_text().replace(*change))
        told = consilium("agent", "check", "--home", silo)
        assert told.status == 1
        assert told.err.count("error ") == 1
        for word in words:
            assert word in told.err

    def test_check_agrees_with_a_silo_that_is_ready(self, consilium: Consilium, silo: Path) -> None:
        checked = consilium("agent", "check", "--home", silo)
        assert checked.status == 0
        assert "20 rows" in checked.out

    def test_there_is_no_model_to_export(self, consilium: Consilium, silo: Path) -> None:
        out = silo / "model.joblib"
        told = consilium("agent", "export-model", "trial", "--out", out, "--home", silo)
        told.says("never heard of a task called trial")
        assert not out.exists()
