"""How ballots become a consensus: one module per idea, pure functions over counted votes."""

from coordinator.consensus.forming import changed_rows, form_consensus
from coordinator.consensus.majority import majority
from coordinator.consensus.qualified import QualifiedMajority
from coordinator.consensus.rules import Rule, rule_for
from coordinator.consensus.tally import Counts, Tally
from coordinator.consensus.ties import TieKey

__all__ = [
    "Counts",
    "QualifiedMajority",
    "Rule",
    "Tally",
    "TieKey",
    "changed_rows",
    "form_consensus",
    "majority",
    "rule_for",
]
