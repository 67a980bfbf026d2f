"""FEDAUX's certainties: any mechanism's votes, each with how much its row looks like the silo's own.

The certainty model (`certainty_model`) is trained once per task, with noise, and paid for once, as the private
labeller's head is: it is kept with a random name and with what it cost; while there is none, every offer gives a new
name, and once there is one, offers speak of it alone. It is paid for by the first ballot that leaves, together with
what the votes cost. Where the task has a budget the votes get what certainties leave of it.

On D⁻, the public rows the model was trained against, the ballot abstains: of these it knows nothing that holds elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np
from pydantic import BaseModel, ConfigDict, JsonValue

from silo_agent.trainer.models.failures import note_failure
from silo_agent.trainer.privacy.bounded import Floats
from silo_agent.trainer.privacy.certainty.model import CertaintyPlan, papers_scale
from silo_agent.trainer.privacy.certainty.rows import PublicView, negative_rows, negatives
from silo_agent.trainer.privacy.certainty.scores import scores, shrunk
from silo_agent.trainer.privacy.mechanisms.catalogue import build
from silo_agent.trainer.privacy.mechanisms.protocol import (
    Extracted,
    KeptFiles,
    LabelsWanted,
    Mechanism,
    Offer,
    PaidOnce,
    Scope,
    SiloRound,
    Vote,
)
from silo_agent.trainer.privacy.settings import (
    CertaintySettings,
    NoneSettings,
    PrivacySettings,
    has_own_noise,
)
from silo_agent.trainer.privacy.silo_without_data import silo_without_data
from wire.ballot import ABSTAIN, Encoding
from wire.privacy.accounting import epsilon
from wire.privacy.events import Event, Gaussian
from wire.privacy.randomness import Bits, SecureBits
from wire.task.methods import FedauxPolicy

_MODEL: Final = "certainty-model"
_BASIS: Final = "certainty-basis"
_TRIES: Final = 4
"""Mechanisms built, at most, to find one that fits beside certainties; the first does if its noise is Gaussian."""


def with_certainty(
    mechanism: Mechanism,
    settings: PrivacySettings,
    scope: Scope,
    policy: FedauxPolicy,
    public_set: str,
) -> Mechanism:
    """`mechanism`, or the same one built for the budget that certainties leave, whose votes carry certainties."""
    rows = scope.shape.rows
    plan = CertaintyPlan.calibrated(
        settings.certainty,
        scope.units,
        negative_rows(rows, policy.negatives),
        policy.regularisation,
    )
    against = negatives(rows, policy.negatives, public_set)
    beside = _beside(mechanism, settings, scope, plan)
    return CertainVotes(beside or mechanism, plan, settings, scope, against, starved=beside is None)


def _beside(
    mechanism: Mechanism, settings: PrivacySettings, scope: Scope, plan: CertaintyPlan
) -> Mechanism | None:
    """The mechanism built for as much of the budget as certainties leave; None if they leave nothing."""
    limit = scope.epsilon
    own = isinstance(settings.mechanism, NoneSettings) or has_own_noise(settings.mechanism)
    if limit is None or own or mechanism.misfit():
        return mechanism
    share = _left(limit, scope.delta, plan)
    for _ in range(_TRIES):
        if share <= 0:
            break
        tried = build(settings.mechanism, replace(scope, epsilon=share))
        votes = tried.offer(silo_without_data(scope.shape)).whole_task(tried.paid_rounds)
        if epsilon((*votes, *plan.events), scope.delta) <= limit:
            return tried
        share = min(share / 2, limit - epsilon(plan.events, scope.delta))
    return None


def _left(limit: float, delta: float, plan: CertaintyPlan) -> float:
    """What is left of ε beside the plan's noise: exact where the other noise is Gaussian, too, and else a guess."""
    whole = CertaintyPlan.calibrated(CertaintySettings(epsilon=limit, delta=delta), 1, 1, 1.0)
    precision = whole.multiplier**-2 - plan.multiplier**-2
    if precision <= 0:
        return 0.0
    # A thousandth less, for noise is calibrated to within that.
    return epsilon([Gaussian(sensitivity=1.0, scale=precision**-0.5)], delta) * (1 - 1e-3)


class CertainVotes:
    """A mechanism whose votes are weighted."""

    def __init__(
        self,
        inner: Mechanism,
        plan: CertaintyPlan,
        settings: PrivacySettings,
        scope: Scope,
        against: np.ndarray[tuple[int], np.dtype[np.int64]],
        *,
        starved: bool = False,
    ) -> None:
        self.name = inner.name
        self._inner, self._plan, self._settings, self._scope = inner, plan, settings, scope
        self._against, self._starved = against, starved

    @property
    def paid_rounds(self) -> int:
        """As many as the votes are bought in."""
        return self._inner.paid_rounds

    @property
    def labels_wanted(self) -> LabelsWanted:
        """As the votes do."""
        return self._inner.labels_wanted

    def misfit(self) -> str:
        """Why votes cannot be made, or not be weighted; empty if they can."""
        encoding = self._scope.shape.encoding
        if encoding is not Encoding.SCORED:
            return f"certainties travel in scored ballots and the task wants {encoding}"
        if self._starved:
            return (
                f"The task's budget ε = {self._scope.epsilon:g} leaves nothing for votes once certainties "
                f"have cost ε = {self._settings.certainty.epsilon:g}; raise privacy.epsilon or lower "
                "privacy.certainty.epsilon."
            )
        return self._inner.misfit()

    def offer(self, silo: SiloRound) -> Offer:
        """What the votes cost, and the certainty model; the declaration speaks of both together."""
        votes, model = self._inner.offer(silo), _kept(silo.kept)
        if model is None:
            basis = f"certainty-{SecureBits().words(2).tobytes().hex()}"
            silo.kept.put(_BASIS, basis.encode())
            part, parameters = PaidOnce(basis, self._plan.events), self._parameters()
        else:
            part, parameters = PaidOnce(model.basis, model.events), model.parameters
        both = replace(
            votes,
            once=(*votes.once, part),
            parameters={**votes.parameters, **parameters},
        )
        return replace(
            both, declaration=votes.declaration.model_copy(update={"epsilon": self._whole(both)})
        )

    def vote(self, silo: SiloRound, bits: Bits) -> Vote:
        """The mechanism's labels with certainties on D_distill, and abstentions on D⁻."""
        if silo.extracted is None:
            raise ValueError("certainties are learned from an extractor's features; there is none")
        vote = self._inner.vote(silo, bits)
        model = _kept(silo.kept) or self._trained(silo, silo.extracted, bits)
        labels = np.array(vote.labels)
        labels[self._against] = ABSTAIN
        public = PublicView.of(silo.extracted.public).rows(silo.extracted.public)
        weights = shrunk(np.array(model.weights), model.scale, model.longest)
        return Vote(labels=labels, scores=scores(public, weights, self._plan.regularisation))

    def _trained(self, silo: SiloRound, seen: Extracted, bits: Bits) -> _Model:
        basis = silo.kept.get(_BASIS)
        if basis is None:
            raise RuntimeError("certainties were asked for before anyone asked what they cost")
        view = PublicView.of(seen.public)
        own, public = view.rows(seen.private), view.rows(seen.public[self._against])
        try:
            weights: Floats = self._plan.train(own, silo.patients, public, bits)
        except Exception as error:
            # Paid for like any other, and kept, so that later rounds are alike as well.
            note_failure("the training of certainties", error, silo.kept)
            weights = np.zeros(public.shape[1])
        model = _Model(
            basis=basis.decode(),
            events=self._plan.events,
            parameters=self._parameters(),
            scale=self._plan.scale,
            longest=self._plan.longest,
            weights=tuple(weights.tolist()),
        )
        silo.kept.put(_MODEL, model.model_dump_json().encode())
        return model

    def _whole(self, offer: Offer) -> float:
        """ε of the whole task; never above its budget, at which the ledger stops it."""
        if math.isinf(offer.declaration.epsilon):
            return math.inf
        whole = epsilon(offer.whole_task(self.paid_rounds), self._scope.delta)
        return whole if self._scope.epsilon is None else min(whole, self._scope.epsilon)

    def _parameters(self) -> dict[str, JsonValue]:
        chosen, plan = self._settings.certainty, self._plan
        total = plan.units + plan.negatives
        papers = papers_scale(chosen.epsilon, chosen.delta, plan.regularisation, total)
        return {
            "certainty_epsilon": chosen.epsilon,
            "certainty_delta": chosen.delta,
            "certainty_noise": plan.scale,
            "certainty_noise_by_the_paper": papers,
            "certainty_sensitivity": plan.sensitivity,
            "certainty_regularisation": plan.regularisation,
            "certainty_negatives": plan.negatives,
        }


class _Model(BaseModel):
    """Noisy weights with the name they are paid under and what they cost, whatever silo.yaml says later."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    basis: str
    events: tuple[Event, ...]
    parameters: dict[str, JsonValue]
    scale: float
    """Standard deviation of the noise in each weight."""
    longest: float
    """What weights without noise would be at most."""
    weights: tuple[float, ...]


def _kept(kept: KeptFiles) -> _Model | None:
    content = kept.get(_MODEL)
    return None if content is None else _Model.model_validate_json(content)
