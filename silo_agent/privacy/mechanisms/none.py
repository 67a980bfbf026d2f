"""No mechanism: the ballot is what the silo's learner says, and the ledger writes that it has no ε."""

from __future__ import annotations

from silo_agent.privacy.mechanisms.protocol import (
    Offer,
    PrivateSide,
    Scope,
    Sensitivity,
    Vote,
)
from wire.privacy.declaration import Declaration, MechanismName
from wire.privacy.events import Unprotected
from wire.privacy.randomness import Bits


class NoMechanism:
    """Every ballot is a release without noise."""

    name = MechanismName.NONE

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    @property
    def paid_rounds(self) -> int:
        """All of them: every round brings the learner's latest labels."""
        return self._scope.rounds

    def misfit(self) -> str:
        """Serves every task; what the task thinks of it is the coordinator's to say."""
        return ""

    def offer(self, silo: PrivateSide) -> Offer:
        """A release without noise."""
        return Offer(
            events=(Unprotected(),),
            declaration=Declaration(unit=self._scope.unit),
            sensitivity=Sensitivity.WORST_CASE,
        )

    def vote(self, silo: PrivateSide, bits: Bits) -> Vote:
        """The learner's labels as they are."""
        return Vote(labels=silo.predict())
