"""Suspended, resumed, revoked, registered anew: what becomes of a running silo, and who is named for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from federation import Federation, federation
from service import eventually

from coordinator.cli.admin import register as register_admin
from coordinator.cli.connection import admin_link
from coordinator.cli.silo import Ballots, resume, revoke, suspend
from wire.consilium.v1 import admin_pb2
from wire.errors import SILO_REVOKED, Refusal
from wire.identity.identity import Role
from wire.net.enrolment import join


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation(tmp_path_factory.mktemp("members")) as running:
        running.join("north")
        running.join("south").close_gate()
        running.run(*running.silos.values())
        yield running


def audited(live: Federation, act: str) -> list[admin_pb2.ListAuditResponse]:
    async def entries() -> list[admin_pb2.ListAuditResponse]:
        async with admin_link(live.home) as link:
            found = link.admin.ListAudit(admin_pb2.ListAuditRequest())
            return [entry async for entry in found if entry.act == act]

    return asyncio.run(entries())


def second_admin(live: Federation, capsys: pytest.CaptureFixture[str]) -> Path:
    """The home of another admin, who joined with a token of the first."""
    capsys.readouterr()
    register_admin("ada", home=live.home, expires="1h", replace_token=False, as_json=False)
    shown = capsys.readouterr().out
    token = next(line for line in shown.splitlines() if line.startswith("consilium-join-1."))
    home = live.folder / "ada"
    asyncio.run(join(token, home / "admin", lambda: datetime.now(UTC), role=Role.ADMIN))
    return home


def test_a_suspended_silos_ballot_goes_if_asked_and_it_comes_back_by_itself(
    live: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    ada = second_admin(live, capsys)
    live.start("first", rounds={"max_rounds": 1, "quorum": 2, "grace": 600})
    live.until_voted("first", "north")

    suspend("north", Ballots.DROP, home=ada)
    assert live.ballots("first") == {}
    assert list(live.show("first").task.open_round.expected) == ["south"]
    north = live.silos["north"].agent
    north.until("disconnected", sentence="Silo north is suspended.")
    assert [entry.actor for entry in audited(live, "silo_suspended")] == ["admin/ada"]
    assert [entry.actor for entry in audited(live, "ballot_dropped")] == ["admin/ada"]

    connections = len(north.events("connected"))
    resume("north", home=live.home)
    eventually("north is back", lambda: len(north.events("connected")) > connections)
    assert not north.ended(), "the same process all along"
    assert [entry.actor for entry in audited(live, "silo_resumed")] == ["admin/admin"]


def test_a_suspended_silos_ballot_stays_if_asked(live: Federation) -> None:
    live.start("second", rounds={"max_rounds": 1, "quorum": 2, "grace": 600})
    live.until_voted("second", "north")
    suspend("north", Ballots.KEEP, home=live.home)
    assert set(live.ballots("second")) == {(1, "north")}
    live.silos["south"].open_gate()
    assert list(live.until_finished("second").history[0].voted) == ["north", "south"]
    resume("north", home=live.home)


def test_a_revoked_silo_ends_and_needs_a_new_token_to_come_back(live: Federation) -> None:
    north = live.silos["north"]
    eventually("north is connected", lambda: live.silo("north").connected)
    revoke("north", Ballots.KEEP, home=live.home, yes=True)
    assert north.agent.wait() == 1
    assert "Silo north has been revoked." in north.agent.text()
    with pytest.raises(Refusal) as refused:
        live.admin(lambda link: link.admin.ResumeSilo(admin_pb2.ResumeSiloRequest(name="north")))
    assert refused.value.is_a(SILO_REVOKED), "resuming is for the suspended"
    north.agent.start()
    assert north.agent.wait() == 1

    token = live.register("north")
    asyncio.run(join(token, north.home.identity, lambda: datetime.now(UTC)))
    live.run(north)
    assert live.silo("north").connected
