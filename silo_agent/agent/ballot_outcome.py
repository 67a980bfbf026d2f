"""What became of a ballot that was sent to the coordinator."""

from __future__ import annotations

from enum import StrEnum

from wire.errors import (
    BALLOT_CONFLICT,
    BALLOT_LABEL_SPACE,
    NOT_A_PARTICIPANT,
    PRIVACY_TOO_WEAK,
    ROUND_CLOSED,
    Refusal,
)


class BallotOutcome(StrEnum):
    """How sending a ballot ended for good; the values are labels of `consilium_agent_ballots_total`."""

    ACCEPTED = "accepted"
    ROUND_CLOSED = "round_closed"
    NOT_A_PARTICIPANT = "not_a_participant"
    CONFLICT = "ballot_conflict"
    LABEL_SPACE = "ballot_label_space"
    PRIVACY_TOO_WEAK = "privacy_too_weak"


# None of these gets better by trying again; the next round may. A paused task is not among them: its round
# goes on when the task does.
_FINAL = {
    ROUND_CLOSED.code: BallotOutcome.ROUND_CLOSED,
    NOT_A_PARTICIPANT.code: BallotOutcome.NOT_A_PARTICIPANT,
    BALLOT_CONFLICT.code: BallotOutcome.CONFLICT,
    BALLOT_LABEL_SPACE.code: BallotOutcome.LABEL_SPACE,
    PRIVACY_TOO_WEAK.code: BallotOutcome.PRIVACY_TOO_WEAK,
}


def final_outcome(refusal: Refusal) -> BallotOutcome | None:
    """The outcome of a refused ballot; None if sending it again may succeed."""
    return _FINAL.get(refusal.code)
