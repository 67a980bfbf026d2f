"""The rules that need counts alone: their form, and which of them a task asks for."""

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
    """The rule a task asks for; ValueError for one that reads the ballots themselves.

    Weights and certainties are in the counts already, so the class that has most of them wins.
    """
    match policy.rule:
        case RuleName.MAJORITY | RuleName.WEIGHTED | RuleName.CERTAINTY_WEIGHTED:
            return majority
        case RuleName.QUALIFIED_MAJORITY:
            return QualifiedMajority(policy.min_share_permille)
        case _:
            raise ValueError(f"rule {policy.rule} needs more than counts")


def counts_certainties(policy: ConsensusPolicy) -> bool:
    """Whether a vote counts its certainty instead of 1."""
    return policy.rule is RuleName.CERTAINTY_WEIGHTED
