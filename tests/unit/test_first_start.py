"""What containers run before anything else: made once, kept ever after, finished if it was cut off."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from coordinator.authority import Authority
from coordinator.cli import coordinator as commands
from coordinator.settings import CoordinatorHome
from coordinator.store import Store
from coordinator.store.members import MemberStore
from silo_agent.cli import agent
from wire.errors import ConfigurationError
from wire.identity import IdentityFiles, Role

# The commands have taken its name.
MODULE = sys.modules["coordinator.founding"]


class Cut(Exception):
    """The process is killed here."""


def init(home: Path, *options: str) -> str:
    outcome = CliRunner().invoke(commands, ["init", "--home", str(home), *options])
    if outcome.exception is not None:
        raise outcome.exception
    return " ".join(outcome.output.split())


def admins(home: Path) -> list[str]:
    folder = CoordinatorHome(home)
    store = Store(folder.database_url(folder.settings()))
    try:
        return [admin.name for admin in store.members.admins()]
    finally:
        store.close()


def files(home: Path) -> dict[Path, bytes]:
    """Everything in a home but the database."""
    return {
        path: path.read_bytes()
        for path in home.rglob("*")
        if path.is_file() and "coordinator.db" not in path.name
    }


def test_a_consortium_is_made_and_then_kept_whatever_the_options_say(tmp_path: Path) -> None:
    made = init(tmp_path, "--if-missing", "--consortium", "rhine", "--metrics-listen", "0.0.0.0")
    assert "rhine made" in made
    settings = yaml.safe_load((tmp_path / "coordinator.yaml").read_text())
    assert (settings["consortium"], settings["metrics_listen"]) == ("rhine", "0.0.0.0")
    before = files(tmp_path)
    kept = init(tmp_path, "--if-missing", "--consortium", "elbe", "--port", "1234")
    assert kept == f"Consortium rhine is in {tmp_path} already; it is kept as it is."
    assert files(tmp_path) == before
    with pytest.raises(ConfigurationError, match="already holds a consortium"):
        init(tmp_path)


def test_metrics_stay_on_the_machine_unless_asked_for(tmp_path: Path) -> None:
    init(tmp_path)
    assert CoordinatorHome(tmp_path).settings().metrics_listen == "127.0.0.1"


def test_replicas_that_start_together_make_one_consortium(tmp_path: Path) -> None:
    script = "from wire.cli import main; main()"
    command = [sys.executable, "-c", script, "coordinator", "init", "--if-missing"]
    replicas = [
        subprocess.Popen([*command, "--home", str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    told = [replica.communicate()[0] for replica in replicas]
    assert [replica.returncode for replica in replicas] == [0, 0, 0]
    assert sorted("made" in text for text in told) == [False, False, True]
    assert sum("kept as it is" in text for text in told) == 2
    assert admins(tmp_path) == ["admin"]


@pytest.mark.parametrize(
    ("owner", "place"),
    [
        (Authority, "create"),
        (MODULE, "ensure_leaf"),
        (Authority, "issue_admin"),
        (IdentityFiles, "store"),
        (MemberStore, "adopt"),
        (MODULE, "write_atomically"),
    ],
)
def test_what_was_cut_off_is_finished_with_one_authority_and_one_admin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, place: str
) -> None:
    def cut(*_: object, **__: object) -> None:
        raise Cut

    with monkeypatch.context() as patched:
        patched.setattr(owner, place, cut)
        with pytest.raises(Cut):
            init(tmp_path, "--if-missing")
    assert not (tmp_path / "coordinator.yaml").exists()
    authority = tmp_path / "authority" / "authority.pem"
    begun = authority.read_bytes() if authority.exists() else None
    if begun is not None:
        with pytest.raises(ConfigurationError):
            init(tmp_path)

    assert "made" in init(tmp_path, "--if-missing")
    assert begun in (None, authority.read_bytes())
    assert admins(tmp_path) == ["admin"]
    folder = CoordinatorHome(tmp_path)
    identity = IdentityFiles.load(folder.admin, Role.ADMIN)
    assert identity.authorities_pem == authority.read_bytes()
    store = Store(folder.database_url(folder.settings()))
    store.members.admit(Role.ADMIN, "admin", identity.certificate.fingerprint)
    store.close()


def test_the_database_of_another_consortium_is_not_taken_over(tmp_path: Path) -> None:
    init(tmp_path / "first")
    database = f"sqlite:///{tmp_path / 'first' / 'coordinator.db'}"
    with pytest.raises(ConfigurationError, match="already holds a consortium"):
        init(tmp_path / "second", "--if-missing", "--database", database)
    # Nor by one whose own admin was made before its database was lost.
    init(tmp_path / "third")
    (tmp_path / "third" / "coordinator.yaml").unlink()
    with pytest.raises(ConfigurationError, match="already holds a consortium"):
        init(tmp_path / "third", "--if-missing", "--database", database)


@pytest.mark.parametrize(
    ("content", "before", "after"),
    [("s3cret\n", None, "s3cret"), ("s3cret", "set", "set"), ("", None, None)],
)
def test_the_databases_password_may_lie_in_a_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: str,
    before: str | None,
    after: str | None,
) -> None:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    if before:
        monkeypatch.setenv("PGPASSWORD", before)
    else:
        # Undone with the test, whatever the command sets.
        monkeypatch.setitem(os.environ, "PGPASSWORD", "")
        del os.environ["PGPASSWORD"]
    (tmp_path / "password").write_text(content)
    monkeypatch.setenv("CONSILIUM_DATABASE_PASSWORD_FILE", str(tmp_path / "password"))
    init(tmp_path / "home")
    assert os.environ.get("PGPASSWORD") == after
    assert "s3cret" not in (tmp_path / "home" / "coordinator.yaml").read_text()


def test_a_password_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    words = ["--database-password-file", str(tmp_path / "none"), "status", "--home", str(tmp_path)]
    outcome = CliRunner().invoke(commands, words)
    assert isinstance(outcome.exception, ConfigurationError)
    assert "none cannot be read" in outcome.exception.sentence


def join(home: Path) -> Result:
    """With a token that nobody has: it lies in a file that is not there."""
    missing = f"@{home / 'token'}"
    return CliRunner().invoke(agent, ["join", missing, "--home", str(home), "--if-missing"])


def test_a_silo_that_has_joined_does_not_even_look_at_the_token(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    authority = Authority.create(tmp_path / "authority", "rhine", now)
    issued = authority.issue_admin("north", timedelta(days=1), now)
    IdentityFiles(
        folder=tmp_path / "identity",
        key_pem=issued.key_pem,
        certificate_pem=issued.certificate_pem,
        authorities_pem=authority.certificate_pem,
        coordinator_address="localhost:7443",
        consortium="rhine",
        name="north",
    ).store()
    before = files(tmp_path)
    outcome = join(tmp_path)
    assert outcome.exit_code == 0
    assert " ".join(outcome.output.split()) == "Joined rhine as north before; it is kept so."
    assert files(tmp_path) == before


def test_a_silo_that_has_not_joined_needs_the_token(tmp_path: Path) -> None:
    outcome = join(tmp_path)
    assert isinstance(outcome.exception, ConfigurationError)
    assert "token cannot be read" in outcome.exception.sentence
