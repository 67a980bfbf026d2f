"""Who acts on the store: a member that called over the network, or the coordinator's own side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from wire.identity.identity import Identity, Role


@dataclass(frozen=True)
class Caller:
    """A member that called, by the certificate it presented. What it does is done only while both are good."""

    identity: Identity
    fingerprint: str

    @property
    def role(self) -> Role:
        """The role its certificate names."""
        return self.identity.role

    @property
    def name(self) -> str:
        """The name its certificate names."""
        return self.identity.name

    def __str__(self) -> str:
        """As the audit chain names it."""
        return f"{self.role}/{self.name}"


@dataclass(frozen=True)
class LocalActor:
    """The coordinator itself, or whoever has its folder: no call gets here, so there is nobody to admit."""

    name: str

    def __str__(self) -> str:
        """As the audit chain names it."""
        return self.name


@dataclass(frozen=True)
class TokenHolder:
    """Whoever redeems a member's join token: it is judged by the token's secret, and its only act is to join."""

    role: Role
    name: str

    def __str__(self) -> str:
        """As the audit chain names it."""
        return f"{self.role}/{self.name}"


Actor: TypeAlias = Caller | LocalActor
"""Who may act on a consortium."""

COORDINATOR: Final = LocalActor("coordinator")
"""Acts when nobody but a deadline did."""
OPERATOR: Final = LocalActor("operator")
"""Acts through commands on the coordinator's host."""
INIT: Final = LocalActor("init")
"""Creates the consortium."""
