"""Releases a ballot: prices it, makes it, stores it, debits the ledger, then returns it to the network side.

Every step is idempotent. After a crash the stored ballot is the one that is debited, and the debited ballot is the
one that is returned, however often it is requested. A ballot and what it costs are one file, and its digest is
compared with the ledger's entry before it is returned (`silo_agent.trainer.kept_ballots`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pydantic import JsonValue, TypeAdapter

from silo_agent.trainer.kept_ballots import BallotRecord, KeptBallot, KeptBallots
from silo_agent.trainer.privacy.budget import Budget, Exceeded, payable
from silo_agent.trainer.privacy.ledger.ledger import Ledger, Overspent
from silo_agent.trainer.privacy.ledger.release import Kind, Release
from silo_agent.trainer.privacy.mechanisms.protocol import (
    LabelsWanted,
    Mechanism,
    Offer,
    Scope,
    Sensitivity,
    SiloRound,
)
from silo_agent.trainer.privacy.settings import PrivacySettings
from silo_agent.trainer.task_folder import Folder
from wire.ballot import digest
from wire.errors import BALLOT_OUTDATED, LEDGER_ROLLED_BACK, Refusal
from wire.privacy.declaration import Declaration
from wire.privacy.events import Event, Free
from wire.privacy.randomness import Bits
from wire.runtime.crash_points import crash_point
from wire.task.consensus_policy import Credibility
from wire.task.definition import TaskDefinition

_JSON = TypeAdapter(dict[str, JsonValue])


@dataclass(frozen=True)
class _Price:
    """An offer the budget can pay, and the events of its models that are not paid for yet."""

    offer: Offer
    unpaid: Mapping[str, tuple[Event, ...]]


@dataclass(frozen=True)
class PaidBallot:
    """A ballot that is on the ledger and may leave the private side."""

    data: bytes
    declaration: Declaration
    abstained: str = ""
    """Why it abstains on every row; empty if it does not."""


@dataclass(frozen=True)
class BallotReleaser:
    """The only way by which anything derived from private rows leaves this process."""

    definition: TaskDefinition
    folder: Folder
    settings: PrivacySettings
    mechanism: Mechanism
    scope: Scope
    ledger: Ledger
    bits: Bits
    known: tuple[int, ...]
    """Indices of the classes the silo knows; it votes for no other."""
    made_with: str = ""
    """Digest of the settings everything is made with, as approvals name it."""

    @property
    def _ballots(self) -> KeptBallots:
        return KeptBallots(
            self.definition, self.folder, self.ledger, self.made_with, self.settings.promise
        )

    @property
    def budget(self) -> Budget:
        """What silo.yaml allows this task and this data set."""
        settings = self.settings
        return Budget(settings.epsilon, settings.lifetime_epsilon, settings.delta, self.scope.unit)

    def spent(self) -> float:
        """ε this task has cost so far, at silo.yaml's δ."""
        settings = self.settings
        return self.ledger.spent(settings.dataset, settings.delta, self.definition.digest)

    def needs_labels(self, silo: SiloRound) -> bool:
        """True if the ballot of the silo's round is still to be made, and from labels that take a training.

        Where the price does not depend on them, nothing is trained for a ballot that cannot be paid for.
        """
        wanted = self.mechanism.labels_wanted
        if wanted is LabelsWanted.NEVER or not self.is_new(silo.round_number):
            return False
        if self._repetition(silo.round_number) is not None:
            return False
        return wanted is LabelsWanted.TO_PRICE or isinstance(self._priced(silo), _Price)

    def is_new(self, round_number: int) -> bool:
        """True if no ballot of this round was made yet."""
        return self._ballots.get(round_number) is None

    def ballot(self, silo: SiloRound) -> PaidBallot:
        """The ballot of the silo's round; asked again, the identical one, paid for once."""
        ballot = self._ballots.get(silo.round_number) or self._made(silo)
        try:
            self.ledger.spend(self._due(ballot.record), self.budget)
        except Overspent as overspent:
            # Spent elsewhere since it was priced. It has never left, so another may take its place.
            crash_point("ballot-overspent")
            ballot = self._ballots.keep(
                self._abstention(silo.round_number, overspent.exceeded.sentence)
            )
            crash_point("abstention-kept")
            self.ledger.spend(ballot.record.release, self.budget)
        crash_point("ballot-paid")
        if not self._ballots.paid(silo.round_number, ballot.data):
            raise self._ballots.damaged(silo.round_number)
        if not self._ballots.may_leave(ballot.record):
            task = self.definition.name
            raise Refusal(BALLOT_OUTDATED, round=silo.round_number, task=task)
        return PaidBallot(ballot.data, ballot.record.declaration, ballot.record.release.reason)

    def _due(self, record: BallotRecord) -> Release:
        """The release, less what a ballot of another round has paid for since this one was kept."""
        release = record.release
        paid = {name for name in record.once if self.ledger.paid_basis(name)}
        if not paid or self.ledger.holds(release):
            return release
        return release.model_copy(
            update={
                "events": _added(record.anew, record.once, without=paid),
                "pays_for": tuple(name for name in release.pays_for if name not in paid),
            }
        )

    def require_ballots(self, known: int) -> None:
        """LEDGER_ROLLED_BACK if more ballots are known to have left than the ledger has.

        Without noise there is nothing left that refusing would protect.
        """
        if self.settings.protects:
            self.ledger.require_at_least(known)

    def require_kept_ballots(self) -> None:
        """LEDGER_ROLLED_BACK if the ledger lacks a ballot that lies in the task's folder and has left."""
        # The newest may have been kept and not yet paid for; all before it were handed out.
        left = self.folder.rounds_voted()[:-1] if self.settings.protects else ()
        for round_number in left:
            data = self.folder.ballot(round_number) or b""
            if not self._ballots.paid(round_number, data):
                why = f"it lacks round {round_number} of task {self.definition.name}"
                raise Refusal(LEDGER_ROLLED_BACK, why=why)

    def _made(self, silo: SiloRound) -> KeptBallot:
        ballot = self._repetition(silo.round_number) or self._new(silo)
        crash_point("ballot-made")
        kept = self._ballots.keep(ballot)
        crash_point("ballot-kept")
        return kept

    def _new(self, silo: SiloRound) -> KeptBallot:
        price = self._priced(silo)
        if isinstance(price, Exceeded):
            return self._abstention(silo.round_number, price.sentence)
        shape = self.definition.shape
        data = self.mechanism.vote(silo, self.bits).within(self.known, shape).packed(shape)
        record = self._record(silo.round_number, Kind.BALLOT, price.offer, data, price.unpaid)
        return KeptBallot(data, record)

    def _priced(self, silo: SiloRound) -> _Price | Exceeded:
        """What a new ballot costs, or which budget it would exceed."""
        offer = self.mechanism.offer(silo)
        unpaid = {
            part.basis: part.events for part in offer.once if not self.ledger.paid_basis(part.basis)
        }
        exceeded = self.ledger.would_exceed(
            self.settings.dataset,
            self.definition.digest,
            _added(offer.events, unpaid),
            self.budget,
            self._planned(offer),
        )
        return _Price(offer, unpaid) if exceeded is None else exceeded

    def _planned(self, offer: Offer) -> tuple[Event, ...]:
        """All that the task will release by this offer, as far as its own budget pays for it."""
        most = self.mechanism.paid_rounds if offer.events else 1
        settings = self.settings
        paid = payable(offer.whole_task, most, settings.epsilon, settings.delta)
        return offer.whole_task(max(1, paid))

    def _repetition(self, round_number: int) -> KeptBallot | None:
        """The last ballot bought, once the mechanism buys no more; None while it does, or if it may not leave now."""
        bought = [
            release
            for release in self.ledger.releases(task_digest=self.definition.digest)
            if release.kind is Kind.BALLOT
        ]
        if len(bought) < self.mechanism.paid_rounds:
            return None
        kept = self._ballots.get(bought[-1].round)
        if kept is None or not self._ballots.may_leave(kept.record):
            return None
        free = {
            "round": round_number,
            "kind": Kind.REPETITION,
            "events": (Free(),),
            "plan": (),
            "pays_for": (),
        }
        release = kept.record.release.model_copy(update=free)
        update = {"release": release, "anew": (), "once": {}}
        return KeptBallot(kept.data, kept.record.model_copy(update=update))

    def _abstention(self, round_number: int, reason: str) -> KeptBallot:
        data = self._ballots.abstaining()
        offer = Offer(
            events=(),
            declaration=self.settings.promise,
            sensitivity=Sensitivity.BY_CONSTRUCTION,
        )
        record = self._record(round_number, Kind.ABSTENTION, offer, data, {}, reason)
        return KeptBallot(data, record)

    def _record(
        self,
        round_number: int,
        kind: Kind,
        offer: Offer,
        data: bytes,
        unpaid: Mapping[str, tuple[Event, ...]],
        reason: str = "",
    ) -> BallotRecord:
        release = Release(
            kind=kind,
            dataset=self.settings.dataset,
            task=self.definition.name,
            task_digest=self.definition.digest,
            round=round_number,
            ballot_digest=digest(data),
            mechanism=self.mechanism.name,
            events=_added(offer.events, unpaid),
            plan=self._planned(offer) if kind is Kind.BALLOT else (),
            made_from=tuple(part.basis for part in offer.once),
            pays_for=tuple(unpaid),
            parameters=_JSON.validate_python(dict(offer.parameters)),
            sensitivity=offer.sensitivity,
            estimate=offer.sensitivity.estimate,
            unit=self.scope.unit,
            units=self.scope.units,
            delta=self.settings.delta,
            reason=reason,
        )
        declared = self._declared(offer.declaration)
        return BallotRecord(
            release=release,
            declaration=declared,
            anew=offer.events,
            once=dict(unpaid),
            made_with=self.made_with,
        )

    def _declared(self, declaration: Declaration) -> Declaration:
        """What is said of a ballot; the silo's size only where the approved task weights silos by it."""
        if self.definition.consensus.credibility is not Credibility.DATA_SIZE:
            return declaration
        return declaration.model_copy(update={"units_log2": self.scope.units.bit_length() - 1})


def _added(
    anew: tuple[Event, ...],
    once: Mapping[str, tuple[Event, ...]],
    without: Collection[str] = (),
) -> tuple[Event, ...]:
    """What is to be paid, `without` some of the models; a ballot that costs nothing says so."""
    models = (event for name, part in once.items() if name not in without for event in part)
    return (*anew, *models) or (Free(),)
