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

from coordinator.cli import coordinator as commands
from coordinator.pki.authority import Authority
from coordinator.server import require_own_authority
from coordinator.settings import CoordinatorHome, CoordinatorSettings
from coordinator.store import Store
from coordinator.store.actors import Caller
from coordinator.store.members import MemberStore
from silo_agent.agent.cli import agent
from wire.errors import ConfigurationError, Refusal
from wire.identity.files import IdentityFiles, key_pem, pending_key
from wire.identity.identity import Identity, Role
from wire.identity.join_token import JoinToken
from wire.net.enrolment import request_pem

pytestmark = pytest.mark.slow

# The commands have taken its name.
MODULE = sys.modules["coordinator.setup.init"]


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
    assert kept.startswith(f"Consortium rhine is in {tmp_path} already; it is kept as it is.")
    assert files(tmp_path) == before
    with pytest.raises(ConfigurationError, match="already holds a consortium"):
        init(tmp_path)


def test_options_that_say_something_else_than_what_is_kept_are_named(tmp_path: Path) -> None:
    given = ("--host", "coordinator", "--port", "8443", "--certificate-lifetime", "7d")
    init(tmp_path, *given)
    quiet = f"Consortium consilium is in {tmp_path} already; it is kept as it is."
    assert init(tmp_path, "--if-missing") == quiet
    assert init(tmp_path, "--if-missing", *given, "--database", "") == quiet
    edit = "to change it, edit coordinator.yaml and restart."
    for options, sentence in (
        (
            ("--host", "a.example.org", "--host", "b"),
            f"--host a.example.org, b was not taken over: hosts is coordinator; {edit}",
        ),
        # Also one that would have been the default.
        (("--port", "7443"), f"--port 7443 was not taken over: port is 8443; {edit}"),
        (("--lease", "1m"), f"--lease 60s was not taken over: lease is 30s; {edit}"),
        (
            ("--consortium", "elbe"),
            "--consortium elbe was not taken over: consortium is consilium, and a consortium keeps its name.",
        ),
        (
            ("--database", "postgresql+psycopg://me:s3cret@there/db"),
            f"--database was not taken over: coordinator.yaml names another; {edit}",
        ),
    ):
        assert init(tmp_path, "--if-missing", *options) == f"{quiet} warning {sentence}"


def test_metrics_stay_on_the_machine_unless_asked_for(tmp_path: Path) -> None:
    init(tmp_path)
    assert CoordinatorHome(tmp_path).settings().metrics_listen == "127.0.0.1"


def test_replicas_that_start_together_make_one_consortium(tmp_path: Path) -> None:
    script = "from wire.runtime.cli import main; main()"
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
    store.members.admit(
        Caller(Identity("hospitals", Role.ADMIN, "admin"), identity.certificate.fingerprint)
    )
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
    """With the token in a file, which need not be there."""
    path = f"@{home / 'token'}"
    return CliRunner().invoke(agent, ["join", path, "--home", str(home), "--if-missing"])


KEPT = "Joined rhine as north before; it is kept so.\n"
DAY = timedelta(days=1)


def joined(home: Path, token_id: str = "", left: timedelta = DAY) -> Authority:
    """An identity that is good for `left`, and the authority that made it."""
    now = datetime.now(UTC)
    authority = Authority.create(home / "authority", "rhine", now)
    request = request_pem(pending_key(home / "identity"), "north").encode()
    IdentityFiles(
        folder=home / "identity",
        key_pem=key_pem(pending_key(home / "identity")),
        certificate_pem=authority.issue(request, Role.SILO, "north", DAY, now - DAY + left),
        authorities_pem=authority.certificate_pem,
        coordinator_address="localhost:7443",
        consortium="rhine",
        name="north",
        token_id=token_id,
    ).store()
    return authority


def token(
    authority: Authority, expires_at: datetime | None = None, name: str = "north"
) -> JoinToken:
    """For a coordinator that cannot be reached."""
    until = expires_at or datetime.now(UTC) + DAY
    certificate = authority.certificate
    return JoinToken.issue("localhost:1", "rhine", Role.SILO, name, until, certificate)


def test_a_silo_that_has_joined_does_not_even_look_at_the_token(tmp_path: Path) -> None:
    joined(tmp_path)
    before = files(tmp_path)
    outcome = join(tmp_path)
    assert outcome.exit_code == 0
    assert outcome.output == KEPT
    assert files(tmp_path) == before


def test_a_silo_that_has_not_joined_needs_the_token(tmp_path: Path) -> None:
    outcome = join(tmp_path)
    assert isinstance(outcome.exception, ConfigurationError)
    assert "token cannot be read" in outcome.exception.sentence


@pytest.mark.parametrize("content", ["", " \n", "the token it joined with"])
def test_a_token_that_says_nothing_new_keeps_the_identity_quietly(
    tmp_path: Path, content: str
) -> None:
    authority = joined(tmp_path / "before")
    same = token(authority)
    joined(tmp_path, same.token_id)
    (tmp_path / "token").write_text(same.line if content.strip() else content)
    before = files(tmp_path)
    outcome = join(tmp_path)
    assert (outcome.exit_code, outcome.output) == (0, KEPT)
    assert files(tmp_path) == before


def test_an_identity_from_before_tokens_were_kept_stays_whatever_token_there_is(
    tmp_path: Path,
) -> None:
    authority = joined(tmp_path)
    (tmp_path / "token").write_text(token(authority).line)
    assert (join(tmp_path).exit_code, join(tmp_path).output) == (0, KEPT)


@pytest.mark.parametrize("kind", ["torn", "expired", "another's"])
def test_a_new_token_that_is_worth_nothing_does_not_end_a_good_identity(
    tmp_path: Path, kind: str
) -> None:
    authority = joined(tmp_path, "0" * 32)
    line = {
        "torn": token(authority).line[:-9],
        "expired": token(authority, datetime.now(UTC) - DAY).line,
        "another's": token(authority, name="south").line,
    }[kind]
    (tmp_path / "token").write_text(line)
    outcome = join(tmp_path)
    assert outcome.exit_code == 0, outcome.exception
    assert outcome.output.endswith(KEPT)
    assert "The join token is left unused." in outcome.output


@pytest.mark.parametrize("left", [DAY, -timedelta(seconds=1)])
@pytest.mark.parametrize("known", [True, False])
def test_a_new_token_is_redeemed(tmp_path: Path, left: timedelta, known: bool) -> None:
    authority = joined(tmp_path, "0" * 32 if known else "", left)
    (tmp_path / "token").write_text(token(authority).line)
    told = join(tmp_path)
    if not known and left > timedelta(0):
        assert told.output == KEPT
        return
    # As far as it gets without a coordinator: this must not pass for a start with the old identity.
    assert isinstance(told.exception, Refusal)
    assert told.exception.code == "UNREACHABLE"


@pytest.mark.parametrize("kind", ["no file", "an empty file", "the old token", "a torn token"])
def test_an_expired_identity_without_a_new_token_is_an_error_that_says_what_to_do(
    tmp_path: Path, kind: str
) -> None:
    old = token(joined(tmp_path / "before"))
    joined(tmp_path, old.token_id, left=-timedelta(seconds=1))
    if kind != "no file":
        (tmp_path / "token").write_text(
            {"an empty file": "", "the old token": old.line, "a torn token": old.line[:-9]}[kind]
        )
    error = join(tmp_path).exception
    assert isinstance(error, Refusal)
    assert error.code == "CERTIFICATE_EXPIRED"
    assert "new join token" in error.hint


def test_an_authority_of_another_consortium_is_not_served(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, "rhine-clinics", datetime.now(UTC))
    ours = CoordinatorSettings(consortium="rhine-clinics", hosts=("localhost",))
    require_own_authority(ours, authority)
    other = CoordinatorSettings(consortium="elbe-clinics", hosts=("localhost",))
    with pytest.raises(ConfigurationError, match=r"elbe-clinics.*rhine-clinics"):
        require_own_authority(other, authority)
