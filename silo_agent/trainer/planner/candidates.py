"""What the planner compares: each mechanism as silo.yaml would name it, its noise chosen for the question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from silo_agent.trainer.explain.costs import encoding_for
from silo_agent.trainer.planner.plan import Entry, Question
from silo_agent.trainer.privacy.mechanisms.catalogue import build
from silo_agent.trainer.privacy.mechanisms.protocol import Mechanism, Scope, SiloRound
from silo_agent.trainer.privacy.mechanisms.randomized_response import Answer
from silo_agent.trainer.privacy.mechanisms.row_loss import bought_rounds
from silo_agent.trainer.privacy.mechanisms.teacher_votes import TeacherVotes
from silo_agent.trainer.privacy.mechanisms.xor import IndependentFlips, calibrated_flip
from silo_agent.trainer.privacy.settings import (
    MechanismSettings,
    NoneSettings,
    PrivateLabellerSettings,
    RandomizedResponseSettings,
    TeacherVotesSettings,
    XorSettings,
)
from wire.ballot import BallotShape
from wire.errors import ConfigurationError
from wire.privacy.accounting import epsilon
from wire.privacy.declaration import Unit

MOST_ROWS: Final = 4000
"""Public rows that are simulated at most; the noise is always that for all of them."""
FEWEST_TEACHERS: Final = 25
"""As silo.yaml has it; larger silos get a teacher for every 20 patients, or for 5 of each class."""
MOST_TEACHERS: Final = 100
"""Training more takes longer than a plan should."""


@dataclass(frozen=True)
class Candidate:
    """A mechanism to be compared."""

    name: str
    settings: MechanismSettings


@dataclass(frozen=True)
class CalibratedCandidate:
    """A candidate with calibrated noise and known cost, ready to be simulated."""

    entry: Entry
    mechanism: Mechanism
    """Its noise is for all public rows; its ballots have `shape`."""
    shape: BallotShape


def candidates(question: Question) -> tuple[Candidate, ...]:
    """All mechanisms; those that pay in every round also with a single payment, repeated for nothing."""
    once = 1 if question.rounds > 1 else None
    shards = question.rows_per_silo // max(20, 5 * question.classes)
    teachers = min(MOST_TEACHERS, max(FEWEST_TEACHERS, shards))
    found = [
        Candidate("none", NoneSettings()),
        Candidate("xor", XorSettings()),
        Candidate("xor · once", XorSettings(paid_rounds=once)),
        Candidate("randomized_response", RandomizedResponseSettings()),
        Candidate("randomized_response · once", RandomizedResponseSettings(paid_rounds=once)),
        Candidate("teacher_votes", TeacherVotesSettings(teachers=teachers)),
        Candidate(
            "teacher_votes · confident", TeacherVotesSettings(teachers=teachers, noise="confident")
        ),
        Candidate("private_labeller", PrivateLabellerSettings()),
    ]
    return tuple(each for each in found if once or not each.name.endswith("once"))


def calibrate_candidate(
    candidate: Candidate, question: Question, silo: SiloRound
) -> CalibratedCandidate | Entry:
    """Chooses the noise by the mechanism's own rule; an unfit entry if the mechanism cannot serve."""
    entry = Entry(candidate.name, candidate.settings)
    if question.delta == 0 and _needs_delta(candidate.settings):
        return replace(entry, unfit="Gaussian noise needs a δ above 0")
    scope = _scope(candidate.settings, question)
    settings = _with_assumed_sensitivity(candidate.settings, question, scope)
    try:
        mechanism = build(settings, scope)
    except ConfigurationError as error:
        return replace(entry, unfit=error.sentence.rstrip("."))
    if misfit := mechanism.misfit():
        return replace(entry, unfit=misfit.rstrip("."))
    offer = mechanism.offer(silo)
    assumed = question.changed_rows if isinstance(settings, XorSettings) else None
    events = offer.whole_task(mechanism.paid_rounds)
    if isinstance(settings, XorSettings) and assumed is not None:
        flips = IndependentFlips(question.classes, settings.flip or 0.0)
        events = (flips.event(assumed),) * mechanism.paid_rounds
    entry = replace(
        entry,
        settings=settings,
        noise=_in_words(settings, offer.parameters),
        level=_in_symbols(settings, offer.parameters),
        parameters=offer.parameters,
        rows=_answered(mechanism, question.public_rows),
        epsilon=epsilon(events, question.delta),
        estimate=assumed is not None,
    )
    shape = replace(scope.shape, rows=len(silo.public))
    return CalibratedCandidate(
        entry, _for_fewer_rows(mechanism, settings, replace(scope, shape=shape)), shape
    )


def _scope(settings: MechanismSettings, question: Question) -> Scope:
    return Scope(
        shape=BallotShape(question.public_rows, question.classes, encoding_for(settings)),
        rounds=question.rounds,
        epsilon=None if isinstance(settings, NoneSettings) else question.epsilon,
        delta=question.delta,
        unit=Unit.PATIENT,
        units=question.rows_per_silo,
    )


def _with_assumed_sensitivity(
    settings: MechanismSettings, question: Question, scope: Scope
) -> MechanismSettings:
    """XOR settings with the flip probability for `question.changed_rows`, if that is given; others unchanged."""
    if not isinstance(settings, XorSettings) or question.changed_rows is None:
        return settings
    paid = bought_rounds(settings.paid_rounds, scope)
    flip = calibrated_flip(scope, question.changed_rows, paid)
    return settings.model_copy(update={"flip": flip})


def _needs_delta(settings: MechanismSettings) -> bool:
    match settings:
        case TeacherVotesSettings():
            return settings.noise != "laplace"
        case PrivateLabellerSettings():
            return True
        case NoneSettings() | XorSettings() | RandomizedResponseSettings():
            return False


def _answered(mechanism: Mechanism, public_rows: int) -> int:
    return mechanism.plan.rows if isinstance(mechanism, TeacherVotes) else public_rows


def _for_fewer_rows(mechanism: Mechanism, settings: MechanismSettings, scope: Scope) -> Mechanism:
    """The same noise on a smaller public set; only teachers care how large it is, for they draw rows from it."""
    if not isinstance(mechanism, TeacherVotes) or not isinstance(settings, TeacherVotesSettings):
        return mechanism
    plan = mechanism.plan
    fixed = settings.model_copy(update={"rows": plan.rows, "scale": plan.scale})
    return TeacherVotes(fixed, replace(scope, epsilon=None))


def _in_words(settings: MechanismSettings, parameters: Mapping[str, Any]) -> str:
    match settings:
        case NoneSettings():
            return "none"
        case XorSettings():
            return f"every bit is flipped with probability {_near_half(parameters['flip'])}"
        case RandomizedResponseSettings():
            voted, other = parameters["one_if_voted"], parameters["one_if_not"]
            if parameters["kind"] == Answer.K_ARY:
                return f"a label is the true one with probability {voted:.4g}, each other with {other:.4g}"
            return f"a label's bit is one with probability {voted:.4g}, any other with {_near_half(other)}"
        case TeacherVotesSettings():
            asked = f", {parameters['checks']} rows looked at" if "checks" in parameters else ""
            return f"σ = {parameters['scale']:.3g} votes on those of {parameters['teachers']} teachers{asked}"
        case PrivateLabellerSettings():
            return (
                f"σ = {parameters['noise_multiplier']:.3g} times what a patient can change, in each of "
                f"{parameters['steps']} training steps"
            )


def _in_symbols(settings: MechanismSettings, parameters: Mapping[str, Any]) -> str:
    match settings:
        case NoneSettings():
            return "none"
        case XorSettings():
            return f"p = {_near_half(parameters['flip'])}"
        case RandomizedResponseSettings():
            voted, other = parameters["one_if_voted"], parameters["one_if_not"]
            return f"p = {_near_half(voted)}, {_near_half(other)}"
        case TeacherVotesSettings():
            return f"σ = {parameters['scale']:.3g} of {parameters['teachers']} votes"
        case PrivateLabellerSettings():
            return f"σ = {parameters['noise_multiplier']:.3g}, {parameters['steps']} steps"


def _near_half(probability: float) -> str:
    """Close to ½ only the distance says anything."""
    away = 0.5 - probability
    return f"0.5 − {away:.2g}" if 0 < away < 1e-3 else f"{probability:.4g}"
