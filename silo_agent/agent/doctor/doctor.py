"""The doctor's checks in order: the steps of a call to the coordinator, then this machine, then the private side.

DNS, TCP, HTTP proxy, TLS, identity, role, protocol, clock; then disk and environment; then what the private side
finds about itself. A step that cannot work because an earlier one failed is reported as skipped.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime

from silo_agent.agent.coordinator_client import CoordinatorClient
from silo_agent.agent.doctor import membership
from silo_agent.agent.doctor.connection import NAMES as CONNECTION
from silo_agent.agent.doctor.connection import ConnectionChecks
from silo_agent.agent.doctor.environment import ENVIRONMENT, environment_finding
from silo_agent.agent.doctor.membership import MembershipReply
from silo_agent.agent.doctor.trainer_check import TrainerCheck
from silo_agent.shared.home import SiloHome
from wire.errors import AUTHORITY_MISMATCH, TOKEN_EXPIRED, ConfigurationError, Refusal
from wire.identity.files import IdentityFiles
from wire.identity.join_token import JoinToken
from wire.net.dialling import Route
from wire.net.proxy import Proxy
from wire.runtime.disk import FreeBytes, check_disk, free_bytes
from wire.runtime.findings import (
    Check,
    Finding,
    Status,
    failed,
    failure,
    ok,
    run_in_order,
    skipped,
)
from wire.runtime.permissions import ACCESS, access_finding

TOKEN, DISK, PRIVATE = "join token", "disk", "private side"
_MEMBERSHIP = (membership.ROLE, membership.PROTOCOL, membership.CLOCK)
_ADDRESS_UNKNOWN = "nothing here says where the coordinator is"
_BEFORE_JOINING = "`consilium agent doctor --token TOKEN` examines the way there first."


@dataclass(frozen=True)
class DoctorInputs:
    """Options of the command, and everything the checks read from outside."""

    home: SiloHome
    token: JoinToken | None = None
    """Before joining: check the way to the enrolment port instead."""
    proxy: Proxy | None = None
    password_on_command_line: bool = False
    with_private_side: bool = True
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    free: FreeBytes = free_bytes
    timeout: float = 5.0
    """Seconds, for each network step."""


def run_checks(
    inputs: DoctorInputs, on_start: Callable[[str], None] = lambda name: None
) -> Iterator[Finding]:
    """Yields findings as they are made; calls `on_start` with the name of the next check. Blocks."""
    with ExitStack() as stack:
        trainer = None
        if inputs.with_private_side and inputs.token is None:
            trainer = TrainerCheck(inputs.home.root)
            stack.callback(trainer.close)
        yield from NetworkChecks(inputs, on_start).findings(stack)
        if trainer is not None:
            on_start(PRIVATE)
            yield from trainer.findings()


class NetworkChecks:
    """The checks of the network side."""

    def __init__(self, inputs: DoctorInputs, on_start: Callable[[str], None]) -> None:
        self._inputs = inputs
        self._on_start = on_start
        self._now = inputs.clock()
        self._missing_bytes = 0
        self._reply: MembershipReply | None = None
        self._files: IdentityFiles | ConfigurationError
        try:
            self._files = IdentityFiles.load(inputs.home.identity)
        except ConfigurationError as error:
            self._files = error

    def findings(self, stack: ExitStack) -> Iterator[Finding]:
        """Every finding, in the order of the steps of a call; `stack` closes what was opened."""
        inputs = self._inputs
        blocked = ""
        connection = self._connection()
        if inputs.token is not None:
            yield self._token(inputs.token)
        for finding in self._reach(connection, stack):
            yield finding
            blocked = blocked or _blocked_by(finding)
        reached = not blocked
        if inputs.token is None:
            for finding in self._identity(connection):
                yield finding
                blocked = blocked or _blocked_by(finding)
            yield from run_in_order(self._membership(), blocked=blocked, on_start=self._on_start)
        yield from self._machine(reached=reached)

    def _connection(self) -> ConnectionChecks | None:
        """Checks of the way to the enrolment port or the coordinator; None if nothing says where that is."""
        inputs = self._inputs
        if inputs.token is not None:
            route = Route(inputs.token.enrolment_address, inputs.proxy, inputs.timeout)
            pinned = inputs.token.authority_pem
            return ConnectionChecks(route, pinned, None, self._now, AUTHORITY_MISMATCH)
        if isinstance(self._files, ConfigurationError):
            return None
        route = Route(self._files.coordinator_address, inputs.proxy, inputs.timeout)
        return ConnectionChecks(route, self._files.authorities_pem, self._files, self._now)

    def _reach(self, connection: ConnectionChecks | None, stack: ExitStack) -> Iterator[Finding]:
        if connection is None:
            yield from (skipped(name, _ADDRESS_UNKNOWN) for name in CONNECTION)
            return
        stack.callback(connection.close)
        yield from run_in_order(connection.checks(), on_start=self._on_start)

    def _machine(self, *, reached: bool) -> Iterator[Finding]:
        inputs, home = self._inputs, self._inputs.home
        self._on_start(DISK)
        folders = [home.identity, home.agent, home.exchange]
        yield check_disk(DISK, folders, self._missing_bytes, inputs.free)
        self._on_start(ACCESS)
        yield access_finding(home.network_side)
        self._on_start(ENVIRONMENT)
        yield environment_finding(
            inputs.environment,
            inputs.proxy,
            reached=reached,
            password_on_command_line=inputs.password_on_command_line,
        )

    def _token(self, token: JoinToken) -> Finding:
        expires = f"{token.expires_at:%Y-%m-%d %H:%M UTC}"
        if self._now >= token.expires_at:
            return failure(TOKEN, Refusal(TOKEN_EXPIRED, name=token.name, expired=expires))
        return ok(
            TOKEN, f"For {token.role} {token.name} of {token.consortium}; valid until {expires}."
        )

    def _identity(self, connection: ConnectionChecks | None) -> Iterator[Finding]:
        files = self._files
        if isinstance(files, ConfigurationError):
            yield failed(membership.IDENTITY, files.sentence, f"{files.hint} {_BEFORE_JOINING}")
            return
        rejected = connection.rejected if connection else None
        yield from run_in_order(
            [
                (
                    membership.IDENTITY,
                    lambda: membership.identity_finding(files, self._now, rejected),
                )
            ],
            on_start=self._on_start,
        )
        yield membership.key_finding(files.key_path)

    def _membership(self) -> list[tuple[str, Check]]:
        return list(zip(_MEMBERSHIP, (self._role, self._protocol, self._clock), strict=True))

    def _role(self) -> Finding:
        if isinstance(self._files, ConfigurationError):
            raise self._files
        self._reply, self._missing_bytes = asyncio.run(self._ask(self._files))
        return membership.role_finding(self._reply.answer, self._files)

    def _protocol(self) -> Finding:
        return membership.protocol_finding(self._required_reply().answer)

    def _clock(self) -> Finding:
        return membership.clock_finding(self._required_reply().ahead)

    def _required_reply(self) -> MembershipReply:
        if self._reply is None:
            raise AssertionError("the role is checked first")
        return self._reply

    async def _ask(self, files: IdentityFiles) -> tuple[MembershipReply, int]:
        """How the coordinator knows this silo, and the bytes of public sets still to be downloaded."""
        inputs = self._inputs
        coordinator = CoordinatorClient(files, inputs.proxy)
        try:
            asked = inputs.clock()
            answer = await coordinator.who_am_i(2 * inputs.timeout)
            answered = inputs.clock()
            missing = [
                (await coordinator.public_set(digest)).size_bytes
                for digest in answer.public_sets
                if not (inputs.home.public_sets / digest).exists()
            ]
        finally:
            await coordinator.close()
        return MembershipReply.of(answer, asked, answered), sum(missing)


def _blocked_by(finding: Finding) -> str:
    """Why later steps are skipped after `finding`; empty if they are not."""
    match finding.status:
        case Status.FAILED:
            return f"{finding.name} failed"
        case Status.SKIPPED:
            return _ADDRESS_UNKNOWN
        case Status.OK | Status.WARNING:
            return ""
