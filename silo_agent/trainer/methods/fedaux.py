"""FEDAUX: FedCT whose votes carry how much each public row looks like the silo's own.

The certainty model (`privacy/certainty`) is trained once per task with noise and paid for once.
"""

from __future__ import annotations

from typing import Final

from silo_agent.trainer.methods.fedct import FedCT
from silo_agent.trainer.methods.protocol import CannotServe, Disclosure, Method, SiloFacts
from silo_agent.trainer.privacy.certainty.mechanism import with_certainty
from silo_agent.trainer.privacy.certainty.worth import CertaintyWorth
from silo_agent.trainer.privacy.mechanisms.protocol import Mechanism, Scope
from silo_agent.trainer.privacy.settings import PrivacySettings

_FEATURES: Final = 32
"""Of an extractor, for the example an officer is given."""
_LEAVES: Final = (
    "In a task that weights votes by certainty (FEDAUX): with each label a number from 1 to 15, and an abstention on "
    "the public rows that the certainty model was trained against."
)


class FEDAUX(FedCT):
    """Co-training whose ballots are weighted by certainty."""

    def require(self, silo: SiloFacts) -> None:
        """Certainties are computed from what the task's extractor sees."""
        if not silo.has_extractor:
            raise CannotServe(
                "The task weights votes by what its extractor sees, and the extractor is not here."
            )

    def mechanism(self, settings: PrivacySettings, scope: Scope) -> Mechanism:
        """The one that silo.yaml names, built for what certainties leave of the budget."""
        if self.definition.fedaux is None:
            raise ValueError("a FEDAUX task has a section fedaux")
        votes = super().mechanism(settings, scope)
        return with_certainty(
            votes, settings, scope, self.definition.fedaux, self.definition.public_set
        )

    @staticmethod
    def disclosure(settings: PrivacySettings) -> Disclosure:
        """How certainties are made, what they cost, and from how many patients on they say anything."""
        certainty = settings.certainty
        budgeted = settings.epsilon is not None
        part = (
            "It is part of the task's budget"
            if budgeted
            else "It comes on top of what the votes cost"
        )
        worth = CertaintyWorth(certainty, 1, _FEATURES)
        return Disclosure(
            how=(
                "In a task that weights votes by certainty (FEDAUX), a second model learns, once, to tell the silo's "
                f"rows from public ones; Gaussian noise makes it ε = {certainty.epsilon:.12g} at "
                f"δ = {certainty.delta:.12g} for one exchange. {part}, is paid for with the first ballot and never "
                "again.",
                f"With {_FEATURES} features that noise leaves nothing but noise below {worth.enough_units} patients; "
                "with k times as many features it takes √k times as many patients. Votes then count nearly alike.",
            ),
            leaves=(_LEAVES,),
        )


METHOD: Final[type[Method]] = FEDAUX
