"""No mechanism: the ballot is what the silo's learner says, and the ledger writes that it has no ε."""

from __future__ import annotations

from silo_agent.trainer.privacy.mechanisms.protocol import (
    LabelsWanted,
    Offer,
    Scope,
    Sensitivity,
    SiloRound,
    Vote,
)
from wire.privacy.declaration import Declaration, MechanismName
from wire.privacy.events import Unprotected
from wire.privacy.randomness import Bits


class NoMechanism:
    """Every ballot is a release without noise."""

    name = MechanismName.NONE
    labels_wanted = LabelsWanted.TO_VOTE

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    @property
    def paid_rounds(self) -> int:
        """All of them: every round brings the learner's latest labels."""
        return self._scope.rounds

    def misfit(self) -> str:
        """Serves every task; what the task thinks of it is the coordinator's to say."""
        return ""

    def offer(self, silo: SiloRound) -> Offer:
        """A release without noise."""
        return Offer(
            events=(Unprotected(),),
            declaration=Declaration(unit=self._scope.unit),
            sensitivity=Sensitivity.WORST_CASE,
        )

    def vote(self, silo: SiloRound, bits: Bits) -> Vote:
        """The learner's labels as they are."""
        return Vote(labels=silo.wanted_labels())
