"""An admin whose certificate has expired comes back through the coordinator's folder, and only through it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from coordinator_process import Told, await_port, background, consilium
from service import free_ports

from coordinator.settings import CoordinatorHome
from wire.identity.account import os_account
from wire.identity.files import IdentityFiles
from wire.identity.identity import Role


@pytest.fixture
def home(tmp_path: Path) -> CoordinatorHome:
    """A consortium whose first admin's certificate lives for two seconds."""
    folder = tmp_path / "coordinator"
    port, enrolment_port, metrics_port = free_ports(3)
    consilium(
        *("coordinator", "init", "--home", folder, "--host", "localhost"),
        *("--listen", "127.0.0.1", "--port", port, "--enrolment-port", enrolment_port),
        *("--metrics-port", metrics_port, "--certificate-lifetime", "2s"),
    )
    return CoordinatorHome(folder)


@contextmanager
def served(home: CoordinatorHome) -> Iterator[None]:
    log = home.root.with_suffix(".log")
    with background("coordinator", "serve", "--home", home.root, log=log):
        await_port(home.settings().port)
        yield


def edit(home: CoordinatorHome, **values: object) -> None:
    """What an operator does to coordinator.yaml."""
    settings = yaml.safe_load(home.settings_file.read_text())
    home.settings_file.write_text(yaml.safe_dump(settings | values))


def until_expired(home: CoordinatorHome) -> None:
    end = IdentityFiles.load(home.admin, Role.ADMIN).certificate.not_after
    time.sleep(max(0.0, (end - datetime.now(UTC)).total_seconds()) + 0.1)


def run(home: CoordinatorHome, *arguments: object, status: int | None = 0) -> Told:
    return consilium(*arguments, "--home", home.root, status=status)


def test_an_expired_admin_is_told_the_way_back_and_takes_it_while_the_coordinator_serves(
    home: CoordinatorHome, tmp_path: Path
) -> None:
    with served(home):
        until_expired(home)
        for words in (("silo", "list"), ("admin", "renew"), ("admin", "register", "ada")):
            told = run(home, *words, status=1)
            assert "ADMIN_CERTIFICATE_EXPIRED" in told.err
            assert "`consilium coordinator admit-admin`" in told.err
            assert "agent join" not in told.err
            assert "warning" not in told.err
        edit(home, certificate_lifetime="1h")
        told = run(home, "coordinator", "admit-admin")
        assert "Admin admin has a new certificate" in told.out
        run(home, "silo", "list")

        # Good again: to replace it now is worth a question, and the one before is void.
        laptop = CoordinatorHome(tmp_path / "laptop")
        shutil.copytree(home.admin, laptop.admin)
        asked = run(home, "coordinator", "admit-admin", status=1)
        assert "still good; it will be withdrawn" in asked.out
        run(laptop, "silo", "list")
        run(home, "coordinator", "admit-admin", "--yes")
        assert "CERTIFICATE_SUPERSEDED" in run(laptop, "silo", "list", status=1).err

        assert run(home, "audit", "verify").out.startswith("ok  3 entries")
        entries = run(home, "audit", "list", "--json").json()["entries"]
        admitted = [one for one in entries if one["act"] == "admin_admitted"]
        assert [(one["actor"], one["subject"]) for one in admitted] == [
            (f"host/{os_account()}", "admin/admin")
        ] * 2


def test_another_name_is_admitted_only_if_a_person_says_so(home: CoordinatorHome) -> None:
    before = (home.admin / "certificate.pem").read_bytes()
    asked = run(home, "coordinator", "admit-admin", "ada", status=1)
    assert "There is no admin ada yet." in asked.out
    assert "holds the identity of admin" in asked.out
    assert (home.admin / "certificate.pem").read_bytes() == before
    run(home, "coordinator", "admit-admin", "ada", "--yes")
    assert IdentityFiles.load(home.admin, Role.ADMIN).name == "ada"
    # With the folder's identity lost it is the first admin's turn.
    shutil.rmtree(home.admin)
    run(home, "coordinator", "admit-admin", "--yes")
    assert IdentityFiles.load(home.admin, Role.ADMIN).name == "admin"
    told = run(home, "coordinator", "admit-admin", "Ada Lovelace", "--yes", status=1)
    assert "NAME_INVALID" in told.err


def test_without_the_authority_and_the_database_nobody_is_admitted(
    home: CoordinatorHome, tmp_path: Path
) -> None:
    laptop = CoordinatorHome(tmp_path / "laptop")
    shutil.copytree(home.admin, laptop.admin)
    told = run(laptop, "coordinator", "admit-admin", "--yes", status=1)
    assert "coordinator.yaml does not exist" in told.err
    shutil.copy(home.settings_file, laptop.settings_file)
    told = run(laptop, "coordinator", "admit-admin", "--yes", status=1)
    assert "holds no consortium" in told.err
    edit(laptop, database=home.database_url(home.settings()))
    told = run(laptop, "coordinator", "admit-admin", "--yes", status=1)
    assert "There is no authority" in told.err


def test_in_the_coordinators_folder_commands_go_where_coordinator_yaml_says(
    home: CoordinatorHome, tmp_path: Path
) -> None:
    edit(home, certificate_lifetime="1h")
    run(home, "coordinator", "admit-admin", "--yes")
    elsewhere = CoordinatorHome(tmp_path / "elsewhere")
    shutil.copytree(home.admin, elsewhere.admin)
    (moved,) = free_ports(1)
    edit(home, port=moved)
    with served(home):
        run(home, "silo", "list")
        # An admin elsewhere has only the address it joined with.
        assert "UNREACHABLE" in run(elsewhere, "silo", "list", status=1).err
