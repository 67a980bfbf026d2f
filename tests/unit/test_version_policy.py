"""Which agents a coordinator serves, and what both sides are told of each other's release."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from coordinator.api import interceptor as gate
from coordinator.api import rounds
from coordinator.context import ServiceContext
from silo_agent.agent import agent
from silo_agent.agent.clock import CoordinatorClock
from wire import __version__
from wire.consilium.v1 import rounds_pb2, task_pb2
from wire.errors import UNREACHABLE, VERSION_TOO_OLD, Refusal
from wire.identity.identity import Identity, Role
from wire.version_policy import advice, release_of, require_served


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.1.0", (0, 1)),
        ("1.12.3", (1, 12)),
        ("2.0", (2, 0)),
        ("0.4.0rc1", (0, 4)),
        ("0.4+hospital", (0, 4)),
        ("", None),
        ("test", None),
        ("1", None),
        ("٣.٤", None),
        ("1." + "9" * 30, None),
    ],
)
def test_a_release_is_what_the_first_two_numbers_say(
    version: str, release: tuple[int, int] | None
) -> None:
    assert release_of(version) == release


@pytest.mark.parametrize(
    ("agent", "coordinator", "served"),
    [
        ("0.3.0", "0.3.9", True),
        ("0.2.7", "0.3.0", True),
        ("0.1.9", "0.3.0", False),
        ("0.4.0", "0.3.0", True),
        ("0.9.0", "0.10.0", True),
        ("1.0.0", "2.0.0", True),
        ("0.9.0", "2.0.0", False),
        ("1.9.0", "2.1.0", False),
        ("", "0.3.0", True),
    ],
)
def test_a_coordinator_serves_its_release_and_the_one_before(
    agent: str, coordinator: str, served: bool
) -> None:
    if served:
        require_served("north", agent, coordinator)
        return
    with pytest.raises(Refusal) as caught:
        require_served("north", agent, coordinator)
    assert caught.value.is_a(VERSION_TOO_OLD)


def test_the_refusal_names_silo_and_releases() -> None:
    with pytest.raises(Refusal) as caught:
        require_served("north", "0.1.9", "0.3.2")
    assert caught.value.sentence == (
        "The agent of north is of release 0.1; this coordinator is of 0.3 and serves 0.2 and newer."
    )


def test_this_release_serves_itself() -> None:
    assert release_of(__version__) is not None
    require_served("north", __version__, __version__)
    assert advice(__version__, __version__) == ("", "")


class Context:
    """What a servicer says before its first answer."""

    def __init__(self) -> None:
        self.metadata: dict[str, str] = {}

    async def send_initial_metadata(self, pairs: tuple[tuple[str, str], ...]) -> None:
        self.metadata = dict(pairs)


class LeaseTakenError(Exception):
    """The silo was let in."""


def watched(version: str) -> None:
    """Opens a watch with a coordinator whose store stops it at the lease."""

    async def stop(*_: object) -> None:
        raise LeaseTakenError

    async def watch() -> None:
        gate._caller.set(Identity("rhine", Role.SILO, "north"))
        service = SimpleNamespace(
            in_store=stop,
            store=SimpleNamespace(silos=SimpleNamespace(take_lease=None)),
            clock=lambda: None,
            lease=None,
        )
        servicer = rounds.RoundsServicer(cast(ServiceContext, service))
        request = rounds_pb2.WatchRequest(instance="i", agent_version=version)
        await anext(servicer.Watch(request, Context()))

    asyncio.run(watch())


def test_an_agent_two_releases_behind_gets_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "__version__", "0.3.0")
    with pytest.raises(LeaseTakenError):
        watched("0.2.0")
    with pytest.raises(Refusal) as caught:
        watched("0.1.0")
    assert caught.value.is_a(VERSION_TOO_OLD)


class Link:
    """A coordinator of some version; every connection breaks in the end."""

    def __init__(self, version: str, refusal: Refusal) -> None:
        self.coordinator_version = version
        self.identity = SimpleNamespace(coordinator_address="example.org:7443")
        self.opened = 0
        self._refusal = refusal

    async def watch(
        self, instance: str, after_revision: int, opened: Callable[[], None]
    ) -> AsyncGenerator[task_pb2.TaskState, None]:
        assert after_revision == 0, "behind a new connection may be a restored coordinator"
        self.opened += 1
        if self._refusal.is_a(VERSION_TOO_OLD):
            raise self._refusal
        opened()
        await asyncio.Event().wait()
        yield task_pb2.TaskState()

    async def heartbeat(self, instance: str, activity: object) -> None:
        raise self._refusal


def connected(link: Link) -> list[Any]:
    """What an agent logs of one connection."""
    metrics = SimpleNamespace(connected=SimpleNamespace(set=lambda value: None))
    unused: Any = None
    clock = CoordinatorClock(lambda: unused, unused)
    made = agent.Agent(
        cast(Any, link), unused, unused, unused, cast(Any, metrics), "i", unused, clock
    )
    with capture_logs() as logs:
        error = asyncio.run(made._run_connection(asyncio.Event()))
    assert isinstance(error, Refusal)
    if error.is_a(VERSION_TOO_OLD):
        with pytest.raises(Refusal):
            asyncio.run(made._stay_connected())
    return logs


@pytest.mark.parametrize(
    ("version", "words"), [("0.0.9", "upgrade the coordinator"), ("7.1", "Upgrade agent")]
)
def test_an_agent_of_another_release_is_told(version: str, words: str) -> None:
    link = Link(version, Refusal(UNREACHABLE, address="example.org:7443", why="it broke"))
    told = [line for line in connected(link) if line["event"] == "versions_differ"]
    assert len(told) == 1
    assert words in told[0]["hint"]


def test_an_agent_of_the_same_release_is_told_nothing() -> None:
    link = Link(__version__, Refusal(UNREACHABLE, address="example.org:7443", why="it broke"))
    assert [line["event"] for line in connected(link)] == ["connected"]


def test_an_agent_that_is_too_old_ends_instead_of_asking_again() -> None:
    told = {"name": "north", "agent": "0.1", "coordinator": "0.3", "oldest": "0.2"}
    link = Link("0.3.0", Refusal(VERSION_TOO_OLD, **told))
    connected(link)
    assert link.opened == 2, "once for its sentence, once to see that it is the last"
