"""How ballots become a consensus: one module per idea, pure functions over votes."""

from coordinator.consensus.agreement import Agreement
from coordinator.consensus.decoding import ballot_weights
from coordinator.consensus.electing import Outcome, elect
from coordinator.consensus.forming import changed_rows, form_consensus
from coordinator.consensus.majority import majority
from coordinator.consensus.party_noise import NoisyRule, PartyRelease, release_of
from coordinator.consensus.poll import BallotBox
from coordinator.consensus.qualified import QualifiedMajority
from coordinator.consensus.rules import Rule, rule_for
from coordinator.consensus.tally import Counts, Tally
from coordinator.consensus.ties import TieKey
from coordinator.consensus.views import labels_for

__all__ = [
    "Agreement",
    "BallotBox",
    "Counts",
    "NoisyRule",
    "Outcome",
    "PartyRelease",
    "QualifiedMajority",
    "Rule",
    "Tally",
    "TieKey",
    "ballot_weights",
    "changed_rows",
    "elect",
    "form_consensus",
    "labels_for",
    "majority",
    "release_of",
    "rule_for",
]
