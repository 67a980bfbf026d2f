"""How ballots become a consensus: one module per idea, pure functions over votes."""

from coordinator.consensus.agreement import Agreement
from coordinator.consensus.elect import Outcome, elect
from coordinator.consensus.label_view import changed_rows, labels_for
from coordinator.consensus.majority import majority
from coordinator.consensus.noise_weights import ballot_weights
from coordinator.consensus.party_noise import NoisyRule, PartyRelease, release_of
from coordinator.consensus.poll import BallotSource
from coordinator.consensus.qualified_majority import QualifiedMajority
from coordinator.consensus.rules import Rule, form_consensus, rule_for
from coordinator.consensus.tally import Counts, Tally
from coordinator.consensus.ties import TieKey

__all__ = [
    "Agreement",
    "BallotSource",
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
