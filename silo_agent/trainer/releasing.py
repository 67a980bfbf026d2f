"""A ballot's way out: priced, made, kept, paid for in the ledger, and only then handed to the network side.

Killed anywhere on it, the trainer goes on where it was: a ballot that was kept is the one that is paid for,
one that was paid for is the one that is handed out, as often as it is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter

from silo_agent.privacy.budget import Budget
from silo_agent.privacy.ledger import Ledger, Overspent
from silo_agent.privacy.mechanisms.protocol import (
    Mechanism,
    Offer,
    PrivateSide,
    Scope,
    Sensitivity,
    Vote,
)
from silo_agent.privacy.release import Kind, Release
from silo_agent.privacy.settings import PrivacySettings
from silo_agent.trainer.task_folder import Folder
from wire.ballot import ABSTAIN, digest
from wire.consensus_policy import Credibility
from wire.crash_points import crash_point
from wire.errors import LEDGER_ROLLED_BACK, Refusal
from wire.privacy.declaration import Declaration
from wire.privacy.events import Event, Free
from wire.privacy.randomness import Bits
from wire.task import TaskDefinition


class _Slip(BaseModel):
    """Kept with a ballot: what it costs, what is said of it, and what it would cost had nothing been paid for."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    release: Release
    declaration: Declaration
    anew: tuple[Event, ...] = ()
    """What is paid for whether or not the models it was made from are."""
    once: dict[str, tuple[Event, ...]] = Field(default_factory=dict)
    """By name, the models that `release` pays for, and what each of them costs."""


_Kept: TypeAlias = tuple[bytes, _Slip]
_JSON = TypeAdapter(dict[str, JsonValue])


@dataclass(frozen=True)
class PaidBallot:
    """What may be handed out."""

    data: bytes
    declaration: Declaration
    abstained: str = ""
    """Why it abstains on every row; empty if it does not."""


@dataclass(frozen=True)
class Releasing:
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

    @property
    def budget(self) -> Budget:
        """What silo.yaml allows this task and this data set."""
        settings = self.settings
        return Budget(settings.epsilon, settings.lifetime_epsilon, settings.delta, self.scope.unit)

    def spent(self) -> float:
        """ε this task has cost so far, at silo.yaml's δ."""
        settings = self.settings
        return self.ledger.spent(settings.dataset, settings.delta, self.definition.digest)

    def ballot(self, silo: PrivateSide) -> PaidBallot:
        """The ballot of the silo's round; asked again, the identical one, paid for once."""
        data, slip = self._kept(silo.number) or self._made(silo)
        try:
            self.ledger.spend(self._due(slip), self.budget)
        except Overspent as overspent:
            # Spent elsewhere since it was priced. It has never left, so another may take its place.
            data, slip = self._keep(*self._abstention(silo.number, overspent.exceeded.sentence))
            self.ledger.spend(slip.release, self.budget)
        crash_point("ballot-paid")
        return PaidBallot(data, slip.declaration, slip.release.reason)

    def _due(self, slip: _Slip) -> Release:
        """The release, less what a ballot of another round has paid for since this one was kept."""
        release = slip.release
        paid = {name for name in slip.once if self.ledger.paid_basis(name)}
        if not paid or self.ledger.holds(release):
            return release
        return release.model_copy(
            update={
                "events": _added(slip.anew, slip.once, without=paid),
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
        for number in left:
            data = self.folder.ballot(number) or b""
            if not self.ledger.paid(self.definition.digest, number, digest(data)):
                why = f"it lacks round {number} of task {self.definition.name}"
                raise Refusal(LEDGER_ROLLED_BACK, why=why)

    def _kept(self, number: int) -> _Kept | None:
        data, slip = self.folder.ballot(number), self.folder.slip(number)
        if data is None or slip is None:
            return None
        return data, _Slip.model_validate_json(slip)

    def _keep(self, data: bytes, slip: _Slip) -> _Kept:
        self.folder.keep_ballot(slip.release.round, data, slip.model_dump_json().encode())
        return data, slip

    def _made(self, silo: PrivateSide) -> _Kept:
        data, slip = self._repetition(silo.number) or self._new(silo)
        crash_point("ballot-made")
        kept = self._keep(data, slip)
        crash_point("ballot-kept")
        return kept

    def _new(self, silo: PrivateSide) -> _Kept:
        offer = self.mechanism.offer(silo)
        unpaid = {
            part.basis: part.events for part in offer.once if not self.ledger.paid_basis(part.basis)
        }
        exceeded = self.ledger.would_exceed(
            self.settings.dataset,
            self.definition.digest,
            _added(offer.events, unpaid),
            self.budget,
        )
        if exceeded is not None:
            return self._abstention(silo.number, exceeded.sentence)
        shape = self.definition.shape
        data = self.mechanism.vote(silo, self.bits).within(self.known, shape).packed(shape)
        return data, self._slip(silo.number, Kind.BALLOT, offer, data, unpaid)

    def _repetition(self, number: int) -> _Kept | None:
        """The last ballot bought, once the mechanism buys no more; None while it does."""
        bought = [
            release
            for release in self.ledger.releases(task_digest=self.definition.digest)
            if release.kind is Kind.BALLOT
        ]
        if len(bought) < self.mechanism.paid_rounds:
            return None
        kept = self._kept(bought[-1].round)
        if kept is None:
            return None
        data, slip = kept
        free = {"round": number, "kind": Kind.REPETITION, "events": (Free(),), "pays_for": ()}
        release = slip.release.model_copy(update=free)
        return data, slip.model_copy(update={"release": release, "anew": (), "once": {}})

    def _abstention(self, number: int, reason: str) -> _Kept:
        shape = self.definition.shape
        data = Vote(labels=np.full(shape.rows, ABSTAIN)).packed(shape)
        offer = Offer(
            events=(),
            declaration=self.settings.promise,
            sensitivity=Sensitivity.BY_CONSTRUCTION,
        )
        return data, self._slip(number, Kind.ABSTENTION, offer, data, {}, reason)

    def _slip(
        self,
        number: int,
        kind: Kind,
        offer: Offer,
        data: bytes,
        unpaid: Mapping[str, tuple[Event, ...]],
        reason: str = "",
    ) -> _Slip:
        release = Release(
            kind=kind,
            dataset=self.settings.dataset,
            task=self.definition.name,
            task_digest=self.definition.digest,
            round=number,
            ballot_digest=digest(data),
            mechanism=self.mechanism.name,
            events=_added(offer.events, unpaid),
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
        return _Slip(release=release, declaration=declared, anew=offer.events, once=dict(unpaid))

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
