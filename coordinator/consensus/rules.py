"""Which rules there are: the form of a rule, and the rule a task definition asks for."""

from __future__ import annotations

from typing import Protocol

from coordinator.consensus.majority import majority
from coordinator.consensus.qualified import QualifiedMajority
from coordinator.consensus.tally import Counts
from coordinator.consensus.ties import TieKey
from wire.ballot import Labels
from wire.consensus_policy import ConsensusPolicy, RuleName


class Rule(Protocol):
    """A pure function from votes to labels, row by row independent of how rows are blocked."""

    def __call__(self, counts: Counts, first_row: int, key: TieKey, /) -> Labels:
        """(rows,) labels, ABSTAIN where none is published, from (rows, classes) votes.

        `first_row` is the number of the block's first row in the public set, which ties depend on.
        """
        ...


def rule_for(policy: ConsensusPolicy) -> Rule:
    """The rule a task asks for."""
    match policy.rule:
        case RuleName.MAJORITY:
            return majority
        case RuleName.QUALIFIED_MAJORITY:
            return QualifiedMajority(policy.min_share_permille)
        case _:
            raise NotImplementedError(policy.rule)
