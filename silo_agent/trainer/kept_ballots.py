"""The ballots of one task as they lie at home: each in one file with what it costs, believed only where both agree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from silo_agent.trainer.privacy.ledger.ledger import Ledger
from silo_agent.trainer.privacy.ledger.release import Release
from silo_agent.trainer.privacy.mechanisms.protocol import Vote
from silo_agent.trainer.task_folder import Folder
from wire.ballot import ABSTAIN, digest
from wire.errors import BALLOT_DAMAGED, Refusal
from wire.privacy.declaration import Declaration, MechanismName
from wire.privacy.events import Event
from wire.task.definition import TaskDefinition


class BallotRecord(BaseModel):
    """Stored as JSON before a ballot: its ledger entry, its declaration, and the events the entry is composed of."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    release: Release
    declaration: Declaration
    anew: tuple[Event, ...] = ()
    """Events charged for this ballot in any case."""
    once: dict[str, tuple[Event, ...]] = Field(default_factory=dict)
    """Events of the models that `release` pays for, by the model's name."""
    made_with: str = ""
    """Digest of the settings it was made with; empty in records of earlier versions."""


@dataclass(frozen=True)
class KeptBallot:
    """A ballot and the record that belongs to it."""

    data: bytes
    record: BallotRecord


@dataclass(frozen=True)
class KeptBallots:
    """Reads and writes the ballots of a task's folder, and knows which of them are on the books."""

    definition: TaskDefinition
    folder: Folder
    ledger: Ledger
    made_with: str
    """Digest of the settings new ballots are made with."""
    promise: Declaration
    """What these settings hold every ballot to."""

    def keep(self, ballot: KeptBallot) -> KeptBallot:
        """Puts a ballot on the disk, in the place of one that has never left."""
        record = ballot.record.model_dump_json().encode()
        self.folder.keep_ballot(ballot.record.release.round, ballot.data, record)
        return ballot

    def get(self, round_number: int) -> KeptBallot | None:
        """The ballot of a round; None if one is to be made.

        BALLOT_DAMAGED if a ballot that is on the books is no longer what the books say.
        """
        kept = self.folder.kept_ballot(round_number)
        if kept is None:
            return None
        data, record = kept[0], BallotRecord.model_validate_json(kept[1])
        release = record.release
        if (release.task_digest, release.round) != (self.definition.digest, round_number):
            raise self.damaged(round_number)
        if digest(data) != release.ballot_digest:
            return self._disagreeing(data, record)
        if record.made_with != self.made_with and not self.paid(round_number, data):
            # It has never left, and other settings are approved now.
            return None
        return KeptBallot(data, record)

    def paid(self, round_number: int, data: bytes) -> bool:
        """True if this very ballot is on the books."""
        return self._booked(round_number, digest(data))

    def may_leave(self, record: BallotRecord) -> bool:
        """True unless it was made with other settings and with less privacy than is promised now."""
        declared, promise = record.declaration, self.promise
        if record.made_with == self.made_with or not record.release.costs:
            return True
        if promise.mechanism is MechanismName.NONE:
            return True
        return (
            declared.mechanism is promise.mechanism
            and declared.epsilon <= promise.epsilon
            and declared.estimate <= promise.estimate
        )

    def damaged(self, round_number: int) -> Refusal:
        """The refusal to hand out anything for a round."""
        return Refusal(BALLOT_DAMAGED, round=round_number, task=self.definition.name)

    def abstaining(self) -> bytes:
        """The ballot without a label."""
        shape = self.definition.shape
        return Vote(labels=np.full(shape.rows, ABSTAIN)).packed(shape)

    def _disagreeing(self, data: bytes, record: BallotRecord) -> KeptBallot | None:
        """What to take for a ballot that is not its record's.

        An earlier version kept them in two files. Killed while an abstention took a ballot's place, it left the
        abstention's record beside the ballot, which has not been paid for and must not leave.
        """
        release = record.release
        abstaining = self.abstaining()
        if digest(abstaining) == release.ballot_digest:
            return KeptBallot(abstaining, record)
        if any(self._booked(release.round, one) for one in (digest(data), release.ballot_digest)):
            raise self.damaged(release.round)
        return None

    def _booked(self, round_number: int, ballot_digest: str) -> bool:
        return self.ledger.paid(self.definition.digest, round_number, ballot_digest)
