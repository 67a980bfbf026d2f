"""A hospital that must join again does so with `join --if-missing` and a new token, as containers start."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from coordinator_process import RunningCoordinator, Told, consilium, running_coordinator

from coordinator.pki.authority import Authority
from silo_agent.agent.coordinator_client import CoordinatorClient
from wire.errors import CERTIFICATE_SUPERSEDED, Refusal
from wire.identity.files import IdentityFiles, stored_key
from wire.identity.identity import Role
from wire.net.enrolment import request_pem

DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCoordinator]:
    with running_coordinator(tmp_path_factory.mktemp("live")) as coordinator:
        yield coordinator


def start(home: Path, token: str) -> Told:
    """What a container does first, with this token in its file."""
    home.mkdir(exist_ok=True)
    (home / "token").write_text(token)
    return consilium("agent", "join", f"@{home / 'token'}", "--if-missing", "--home", home)


def registered_anew(live: RunningCoordinator, name: str) -> str:
    """A token for a silo that had joined."""
    live.run("silo", "revoke", name, "--ballots", "keep", "--yes")
    return live.register(name)


def identity(home: Path) -> IdentityFiles:
    return IdentityFiles.load(home / "identity")


def known_as(home: Path) -> str:
    """What the coordinator calls the holder; raises its refusal."""

    async def ask() -> str:
        link = CoordinatorClient(identity(home))
        try:
            return (await link.who_am_i(20)).name
        finally:
            await link.close()

    return asyncio.run(ask())


def test_an_expired_silo_comes_back_with_a_new_token(
    live: RunningCoordinator, tmp_path: Path
) -> None:
    home = tmp_path / "north"
    used = live.register("north")
    start(home, used)
    files, authority = identity(home), Authority.load(live.home / "authority")
    request = request_pem(stored_key(files), "north").encode()
    past = datetime.now(UTC) - 2 * DAY
    replace(files, certificate_pem=authority.issue(request, Role.SILO, "north", DAY, past)).store()

    for token in ("", used):
        (home / "token").write_text(token)
        words = ("agent", "join", f"@{home / 'token'}", "--if-missing", "--home", home)
        assert "CERTIFICATE_EXPIRED" in consilium(*words, status=1).err
    assert (
        "Joined consilium as north; the certificate"
        in start(home, registered_anew(live, "north")).out
    )
    assert known_as(home) == "north"


def test_a_revoked_silo_comes_back_with_a_new_token_and_keeps_it(
    live: RunningCoordinator, tmp_path: Path
) -> None:
    home = tmp_path / "south"
    start(home, live.register("south"))
    first = identity(home)
    token = registered_anew(live, "south")
    with pytest.raises(Refusal) as caught:
        known_as(home)
    assert caught.value.is_a(CERTIFICATE_SUPERSEDED)
    assert "the certificate is valid until" in start(home, token).out
    second = identity(home)
    assert second.certificate != first.certificate
    assert known_as(home) == "south"
    # The token that was used stays in its file, or goes.
    for left in (token, ""):
        told = start(home, left)
        assert told.out == "Joined consilium as south before; it is kept so.\n"
        assert told.err == ""
        assert identity(home) == second


def test_a_token_the_coordinator_does_not_take_leaves_a_good_identity(
    live: RunningCoordinator, tmp_path: Path
) -> None:
    home = tmp_path / "west"
    stale = live.register("west")
    fresh = live.run("silo", "register", "west", "--replace-token", "--json").json()["join_token"]
    start(home, fresh)
    before = identity(home)
    told = start(home, stale)
    assert "it is kept so" in told.out
    assert "The join token is left unused." in told.err
    assert identity(home) == before
    assert known_as(home) == "west"
