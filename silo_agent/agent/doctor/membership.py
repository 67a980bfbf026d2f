"""Checks of this silo's identity: its certificate and key, and how the coordinator knows it; protocol and clock."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from wire import PROTOCOL_VERSION, __version__
from wire.consilium.v1 import identity_pb2
from wire.enums import enum_name
from wire.errors import Refusal
from wire.identity.files import IdentityFiles
from wire.identity.identity import Role
from wire.net.tls_diagnosis import require_currently_valid
from wire.runtime.findings import Finding, failed, ok, warning
from wire.version_policy import advice, require_served

IDENTITY, KEY, ROLE, PROTOCOL, CLOCK = "identity", "key file", "role", "protocol", "clock"

_SKEW_NOTICED = timedelta(seconds=30)
_SKEW_HARMFUL = timedelta(minutes=5)


@dataclass(frozen=True)
class MembershipReply:
    """The coordinator's answer, and how far its clock is ahead of ours."""

    answer: identity_pb2.WhoAmIResponse
    ahead: timedelta

    @classmethod
    def of(
        cls, answer: identity_pb2.WhoAmIResponse, asked: datetime, answered: datetime
    ) -> MembershipReply:
        """Assumes that the coordinator read its clock halfway between request and answer."""
        coordinator_time = answer.coordinator_time.ToDatetime(UTC)
        return cls(answer, coordinator_time - (asked + (answered - asked) / 2))


def identity_finding(files: IdentityFiles, now: datetime, rejected: Refusal | None) -> Finding:
    """Checks the certificate in the folder; `rejected` is why the coordinator did not accept it, if so."""
    certificate = files.certificate
    identity = certificate.identity
    if identity is None or (identity.role, identity.name) != (Role.SILO, files.name):
        return failed(
            IDENTITY,
            f"The certificate in {files.folder} is not that of silo {files.name}.",
            "Join again with a new token: `consilium agent join TOKEN`.",
        )
    require_currently_valid(files, now)
    if rejected is not None:
        raise rejected
    left, life = certificate.not_after - now, certificate.not_after - certificate.not_before
    sentence = f"Silo {files.name} of {files.consortium}; certificate valid {_span(left)} more."
    if left < life / 3:
        return warning(
            IDENTITY,
            sentence,
            "A running agent renews it by itself; see that `consilium agent run` runs and is connected.",
        )
    return ok(IDENTITY, sentence)


def key_finding(path: Path) -> Finding:
    """Checks that only its owner can read the key."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        return warning(
            KEY,
            f"{path} has the mode {mode:04o}: others on this machine may read the key.",
            f"chmod 600 {path}; if someone may have copied it, join again with a new token.",
        )
    return ok(KEY, f"Only its owner can read {path}.")


def role_finding(answer: identity_pb2.WhoAmIResponse, files: IdentityFiles) -> Finding:
    """Checks that the coordinator knows this certificate as this silo's."""
    known = enum_name(identity_pb2.MemberRole, answer.role)
    if (known, answer.name) != (Role.SILO, files.name):
        return failed(
            ROLE,
            f"The coordinator knows this certificate as {known} {answer.name}, not as silo {files.name}.",
            "Use the folder of the silo; see --home.",
        )
    if answer.consortium != files.consortium:
        return failed(
            ROLE,
            f"The coordinator is of the consortium {answer.consortium}, not of {files.consortium}.",
            "Use the folder of the right consortium; see --home.",
        )
    return ok(ROLE, f"The coordinator accepts {answer.name} as a silo of {answer.consortium}.")


def protocol_finding(
    answer: identity_pb2.WhoAmIResponse, ours: int = PROTOCOL_VERSION, version: str = __version__
) -> Finding:
    """Compares protocol and software versions: a coordinator serves its own and the one before."""
    oldest, newest = answer.oldest_protocol, answer.newest_protocol
    spoken = f"{newest}" if oldest == newest else f"{oldest} to {newest}"
    there = f"The coordinator ({answer.coordinator_version}) speaks protocol {spoken}"
    if ours < oldest:
        return failed(PROTOCOL, f"{there}; this agent speaks {ours}.", "Upgrade this agent.")
    if ours > newest:
        return failed(
            PROTOCOL,
            f"{there}; this agent speaks {ours}.",
            "Ask the admin to upgrade the coordinator; it goes first.",
        )
    if ours < newest:
        return warning(
            PROTOCOL,
            f"{there}; this agent speaks {ours}, which the next release drops.",
            "Upgrade this agent soon.",
        )
    try:
        require_served(answer.name, version, answer.coordinator_version)
    except Refusal as refusal:
        return failed(PROTOCOL, refusal.sentence, refusal.hint)
    sentence, hint = advice(version, answer.coordinator_version)
    if sentence:
        return warning(PROTOCOL, sentence, hint)
    return ok(PROTOCOL, f"{there}, and so does this agent.")


def clock_finding(ahead: timedelta) -> Finding:
    """`ahead` is how far the coordinator's clock is ahead of ours; negative if behind."""
    apart = abs(ahead)
    side = "behind" if ahead > timedelta(0) else "ahead of"
    sentence = f"This machine's clock is {_span(apart)} {side} the coordinator's."
    advice = "Set the clock; have it kept by NTP (`timedatectl set-ntp true`)."
    if apart > _SKEW_HARMFUL:
        return failed(CLOCK, sentence, advice)
    if apart > _SKEW_NOTICED:
        return warning(CLOCK, sentence, advice)
    return ok(
        CLOCK, f"It agrees with the coordinator's within {max(apart.total_seconds(), 0.1):.1f} s."
    )


def _span(length: timedelta) -> str:
    """A length of time in the unit a person would use."""
    seconds = length.total_seconds()
    for unit, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} seconds"
