"""The private labeller: a head trained once, with noise; its labels and certainties on U are then free, round after round.

What makes "paid once" true. The head is kept together with a random name, its basis, and with what it cost. As
long as there is no head, every offer gives a new name; once there is one, offers speak of it alone, whatever
silo.yaml says by then. So a head that was paid for is never trained anew under the same name (lost, it gets a new
one and is paid again), and a crash after training leads to the same head, paid under the name it was offered with.

A head never sees another silo's labels, so its ballot is the same in every round; the silo's own learner, which
does see them, trains at home and is not asked here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from silo_agent.trainer.models.failures import note_failure
from silo_agent.trainer.models.stored import dump, load
from silo_agent.trainer.privacy.labellers.constant_head import ConstantHead
from silo_agent.trainer.privacy.labellers.protocol import Head, HeadTrainer, Probabilities
from silo_agent.trainer.privacy.mechanisms.protocol import (
    KeptFiles,
    LabelsWanted,
    Offer,
    PaidOnce,
    Scope,
    Scores,
    Sensitivity,
    SiloRound,
    Vote,
)
from silo_agent.trainer.privacy.settings import PrivateLabellerSettings
from wire.ballot import BEST_SCORE
from wire.errors import ConfigurationError, ConsiliumError
from wire.privacy.accounting import epsilon
from wire.privacy.declaration import Declaration, MechanismName
from wire.privacy.events import Event
from wire.privacy.randomness import Bits, SecureBits

_HEAD: Final = "labeller-head"
_BASIS: Final = "labeller-basis"


@dataclass(frozen=True, eq=False)
class KeptHead:
    """A head with the name it is paid under and what it costs, whatever silo.yaml says later."""

    basis: str
    events: tuple[Event, ...]
    parameters: dict[str, object]
    head: Head


class PrivateLabeller:
    """Labels U by a head that is itself differentially private."""

    name = MechanismName.PRIVATE_LABELLER
    labels_wanted = LabelsWanted.NEVER

    def __init__(self, settings: PrivateLabellerSettings, scope: Scope) -> None:
        self._scope = scope
        self._trainer = trainer_for(settings, scope)

    @property
    def paid_rounds(self) -> int:
        """All: whichever comes first pays for the head, and the others are free."""
        return self._scope.rounds

    def misfit(self) -> str:
        """Nothing: what cannot be trained was refused on construction."""
        return ""

    def offer(self, silo: SiloRound) -> Offer:
        """The cost of the head and its basis; in later rounds the same, which the ledger knows as paid."""
        kept = _kept_head(silo.kept)
        if kept is not None:
            return self._offer(kept.events, kept.parameters, kept.basis)
        basis = f"head-{SecureBits().words(2).tobytes().hex()}"
        silo.kept.put(_BASIS, basis.encode())
        return self._offer(self._trainer.events, self._trainer.parameters, basis)

    def vote(self, silo: SiloRound, bits: Bits) -> Vote:
        """Labels and certainties of the head, which is trained and kept if there is none yet."""
        kept = _kept_head(silo.kept) or self._trained(silo, bits)
        chances = kept.head.probabilities(silo.as_numbers()[1])
        if silo.known is None:
            return Vote(labels=chances.argmax(axis=1), scores=certainties(chances))
        # Among the classes the silo knows; the floor is for rows that noise gave to the others entirely.
        own = chances[:, silo.known] + 1e-12
        labels = np.asarray(silo.known, dtype=np.int64)[own.argmax(axis=1)]
        return Vote(labels=labels, scores=certainties(own / own.sum(axis=1, keepdims=True)))

    def _trained(self, silo: SiloRound, bits: Bits) -> KeptHead:
        basis = silo.kept.get(_BASIS)
        if basis is None:
            raise RuntimeError(
                "a private labeller was asked to vote before it was asked what that costs"
            )
        private, public = silo.as_numbers()
        head: Head
        try:
            head = self._trainer.train(private, silo.patients, public, silo.classes, bits)
        except ConsiliumError:
            raise
        except Exception as error:
            # Paid for like any other, and kept, so that later rounds are alike as well.
            note_failure("the training of the private labeller", error, silo.kept)
            head = ConstantHead(silo.classes)
        kept = KeptHead(basis.decode(), self._trainer.events, self._trainer.parameters, head)
        silo.kept.put(_HEAD, dump(kept))
        return kept

    def _offer(self, events: tuple[Event, ...], parameters: dict[str, object], basis: str) -> Offer:
        declaration = Declaration(
            mechanism=self.name,
            epsilon=epsilon(events, self._scope.delta),
            delta=self._scope.delta,
            unit=self._scope.unit,
        )
        return Offer(
            (), declaration, Sensitivity.BY_CONSTRUCTION, parameters, (PaidOnce(basis, events),)
        )


def trainer_for(settings: PrivateLabellerSettings, scope: Scope) -> HeadTrainer:
    """The head that silo.yaml names, its noise chosen; ConfigurationError says what it lacks."""
    # Imported here: ebm and sgd need libraries that not every silo has.
    try:
        match settings.head:
            case "logistic":
                from silo_agent.trainer.privacy.labellers.logistic import LogisticTrainer

                return LogisticTrainer.for_scope(settings, scope)
            case "ebm":
                from silo_agent.trainer.privacy.labellers.ebm import EbmTrainer

                return EbmTrainer.for_scope(settings, scope)
            case "sgd":
                from silo_agent.trainer.privacy.labellers.sgd import SgdTrainer

                return SgdTrainer.for_scope(settings, scope)
    except ImportError as error:
        extra = {"ebm": "ebm", "sgd": "torch"}.get(settings.head, "trainer")
        raise ConfigurationError(
            f"The private labeller with head {settings.head} needs {error.name or 'a library'}, which cannot be imported.",
            f'Install it: pip install "consilium[{extra}]"; or choose head logistic.',
        ) from error


def certainties(chances: Probabilities) -> Scores:
    """(n,) 0 to 15: how far the likeliest class is above chance, 1/C, on the way to 1; upwards, so no vote is lost.

    Votes are added up with these as weights, so a silo that has not learned a region, has not seen its classes, or
    whose head is mostly noise (see `LogisticHead.probabilities`) hardly counts there. Log-odds, which would be right
    for independent and well calibrated silos, and the margin over the second class did as well in trials and no better.
    """
    classes = chances.shape[1]
    if classes == 1:
        return np.full(len(chances), BEST_SCORE, dtype=np.uint8)
    above = (chances.max(axis=1) - 1 / classes) / (1 - 1 / classes)
    return np.asarray(np.ceil(np.clip(above, 0, 1) * BEST_SCORE), dtype=np.uint8)


def _kept_head(kept: KeptFiles) -> KeptHead | None:
    content = kept.get(_HEAD)
    if content is None:
        return None
    held: KeptHead = load(content)
    return held
