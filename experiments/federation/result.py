"""What a federation in one process leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from coordinator.consensus.elect import Outcome, elect
from silo_agent.trainer.models.protocol import AnyLearner, Labels
from wire.ballot import ABSTAIN
from wire.privacy.declaration import Declaration
from wire.task.consensus_policy import ConsensusPolicy
from wire.task.definition import TaskDefinition


@dataclass(frozen=True, eq=False)
class FederationResult:
    """Ballots, consensus, models and cost of one task. No rounds are held if every silo is absent."""

    definition: TaskDefinition
    outcomes: tuple[Outcome, ...] = field(repr=False)
    """Per round, what was published."""
    ballots: tuple[Mapping[str, bytes], ...] = field(repr=False)
    """Per round and silo, as they leave the hospital."""
    home_models: Mapping[str, AnyLearner] = field(repr=False)
    """Each silo's own model, trained after the last round; empty if it was not asked for."""
    spent: Mapping[str, float]
    """ε that each silo's ledger has for the task; ∞ without noise."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Silos that could not take part, with the reason; they are in none of the others."""

    def labels(self, silo: str | None = None) -> Labels:
        """(rows,) the last consensus, as `silo` sees it, or (None) one who knows all classes; -1 for no label."""
        if not self.outcomes:
            return np.full(self.definition.rows, ABSTAIN)
        known = None if silo is None else self.definition.label_space(silo)
        return self.outcomes[-1].labels(known).astype(np.int64)

    def recounted(self, policy: ConsensusPolicy) -> Labels:
        """(rows,) what the first round's ballots publish under another policy, all silos declaring the same noise."""
        definition = self.definition.model_copy(update={"consensus": policy})
        cast = self.ballots[0]
        outcome = elect(definition, 1, dict.fromkeys(cast, Declaration()), list(cast.items()))
        return outcome.labels().astype(np.int64)
