"""The rules that need counts alone: their type, which of them a task asks for, and how one is applied."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from coordinator.consensus.majority import majority
from coordinator.consensus.qualified_majority import QualifiedMajority
from coordinator.consensus.tally import ROW_BLOCK, Counts, Tally
from coordinator.consensus.ties import TieKey
from wire.ballot import Labels
from wire.task.consensus_policy import ConsensusPolicy, RuleName


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
        case RuleName.PER_CLASS_THRESHOLD | RuleName.STAPLE | RuleName.TRIMMED:
            raise ValueError(f"rule {policy.rule} needs more than counts")


def counts_certainties(rule: RuleName) -> bool:
    """Whether a vote counts its certainty instead of 1."""
    match rule:
        case RuleName.CERTAINTY_WEIGHTED:
            return True
        case (
            RuleName.MAJORITY
            | RuleName.QUALIFIED_MAJORITY
            | RuleName.WEIGHTED
            | RuleName.PER_CLASS_THRESHOLD
            | RuleName.STAPLE
            | RuleName.TRIMMED
        ):
            return False


def form_consensus(tally: Tally, rule: Rule, key: TieKey) -> Labels:
    """(rows,) labels by `rule`, ABSTAIN where it publishes none; block by block, to bound memory."""
    labels = np.empty(tally.shape.rows, dtype=np.int32)
    for start in range(0, tally.shape.rows, ROW_BLOCK):
        stop = min(start + ROW_BLOCK, tally.shape.rows)
        labels[start:stop] = rule(tally.counts(start, stop), start, key)
    return labels
