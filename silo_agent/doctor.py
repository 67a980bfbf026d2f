"""`consilium agent doctor`: follows the way a call takes and says at which step it breaks.

DNS, TCP, HTTP proxy, TLS, identity, role, protocol, clock; then disk and environment; then the private side about
itself. A step that cannot work because an earlier one failed is listed as not tried.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime

from silo_agent.checks import standing as standings
from silo_agent.checks.environment import ENVIRONMENT, environment_finding
from silo_agent.checks.private_side import PrivateSide
from silo_agent.checks.reach import NAMES as REACH
from silo_agent.checks.reach import Reach
from silo_agent.checks.standing import Standing
from silo_agent.coordinator_link import CoordinatorLink
from silo_agent.disk import FreeBytes, check_disk, free_bytes
from silo_agent.findings import Check, Finding, Status, failed, failure, in_turn, ok, skipped
from silo_agent.home import SiloHome
from wire.dialling import Route
from wire.errors import AUTHORITY_MISMATCH, TOKEN_EXPIRED, ConfigurationError, Refusal
from wire.identity import IdentityFiles
from wire.join_token import JoinToken
from wire.proxy import Proxy

TOKEN, DISK, PRIVATE = "join token", "disk", "private side"
_ASKED = (standings.ROLE, standings.PROTOCOL, standings.CLOCK)
_BEFORE = "`consilium agent doctor --token TOKEN` examines the way there first."


@dataclass(frozen=True)
class Surroundings:
    """Everything the doctor takes from outside."""

    home: SiloHome
    token: JoinToken | None = None
    """Before joining: examine the way to the enrolment port instead."""
    proxy: Proxy | None = None
    password_on_command_line: bool = False
    with_private_side: bool = True
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    free: FreeBytes = free_bytes
    timeout: float = 5.0
    """Seconds, for each step on the network."""


def examine(
    around: Surroundings, starting: Callable[[str], None] = lambda name: None
) -> Iterator[Finding]:
    """Findings as they are made; `starting` hears what is looked at next. Blocks."""
    with ExitStack() as stack:
        private = None
        if around.with_private_side and around.token is None:
            private = PrivateSide(around.home.root)
            stack.callback(private.close)
        yield from Examination(around, starting).findings(stack)
        if private is not None:
            starting(PRIVATE)
            yield from private.findings()


class Examination:
    """The network side's part."""

    def __init__(self, around: Surroundings, starting: Callable[[str], None]) -> None:
        self._around = around
        self._starting = starting
        self._now = around.clock()
        self._needed = 0
        self._standing: Standing | None = None
        self._files: IdentityFiles | ConfigurationError
        try:
            self._files = IdentityFiles.load(around.home.identity)
        except ConfigurationError as error:
            self._files = error

    def findings(self, stack: ExitStack) -> Iterator[Finding]:
        """In the order of the way a call takes."""
        around = self._around
        reach = self._reach()
        blocked = "nothing here says where the coordinator is"
        if around.token is not None:
            yield self._token(around.token)
        if reach is None:
            yield from (skipped(name, blocked) for name in REACH)
        else:
            blocked = ""
            stack.callback(reach.close)
            for finding in in_turn(reach.checks(), starting=self._starting):
                yield finding
                if finding.status is Status.FAILED:
                    blocked = f"{finding.name} failed"
        reached = not blocked
        if around.token is None:
            for finding in self._identity(reach):
                yield finding
                if finding.status is Status.FAILED and not blocked:
                    blocked = f"{finding.name} failed"
            yield from in_turn(self._asking(), blocked=blocked, starting=self._starting)
        self._starting(DISK)
        home = around.home
        folders = [home.identity, home.agent, home.exchange]
        yield check_disk(DISK, folders, self._needed, around.free)
        self._starting(ENVIRONMENT)
        yield environment_finding(
            around.environment,
            around.proxy,
            reached=reached,
            password_on_command_line=around.password_on_command_line,
        )

    def _reach(self) -> Reach | None:
        around = self._around
        if around.token is not None:
            route = Route(around.token.enrolment_address, around.proxy, around.timeout)
            pinned = around.token.authority_pem
            return Reach(route, pinned, None, self._now, AUTHORITY_MISMATCH)
        if isinstance(self._files, ConfigurationError):
            return None
        route = Route(self._files.coordinator_address, around.proxy, around.timeout)
        return Reach(route, self._files.authorities_pem, self._files, self._now)

    def _token(self, token: JoinToken) -> Finding:
        expires = f"{token.expires_at:%Y-%m-%d %H:%M UTC}"
        if self._now >= token.expires_at:
            return failure(TOKEN, Refusal(TOKEN_EXPIRED, name=token.name, expired=expires))
        return ok(
            TOKEN, f"For {token.role} {token.name} of {token.consortium}; valid until {expires}."
        )

    def _identity(self, reach: Reach | None) -> Iterator[Finding]:
        files = self._files
        if isinstance(files, ConfigurationError):
            yield failed(standings.IDENTITY, files.sentence, f"{files.hint} {_BEFORE}")
            return
        rejected = reach.rejected if reach else None
        yield from in_turn(
            [(standings.IDENTITY, lambda: standings.identity_finding(files, self._now, rejected))],
            starting=self._starting,
        )
        yield standings.key_finding(files.key_path)

    def _asking(self) -> list[tuple[str, Check]]:
        return list(zip(_ASKED, (self._role, self._protocol, self._clock), strict=True))

    def _role(self) -> Finding:
        if isinstance(self._files, ConfigurationError):
            raise self._files
        self._standing, self._needed = asyncio.run(self._ask(self._files))
        return standings.role_finding(self._standing.answer, self._files)

    def _protocol(self) -> Finding:
        return standings.protocol_finding(self._known().answer)

    def _clock(self) -> Finding:
        return standings.clock_finding(self._known().ahead)

    def _known(self) -> Standing:
        if self._standing is None:
            raise AssertionError("the role is asked for first")
        return self._standing

    async def _ask(self, files: IdentityFiles) -> tuple[Standing, int]:
        """How the coordinator knows us, and the bytes of public sets still to be fetched."""
        around = self._around
        link = CoordinatorLink(files, around.proxy)
        try:
            asked = around.clock()
            answer = await link.who_am_i(2 * around.timeout)
            answered = around.clock()
            missing = [
                (await link.public_set(digest)).size_bytes
                for digest in answer.public_sets
                if not (around.home.public_sets / digest).exists()
            ]
        finally:
            await link.close()
        return Standing.of(answer, asked, answered), sum(missing)
