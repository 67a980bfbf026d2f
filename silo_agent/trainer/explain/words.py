"""The sentences of an explanation: what each mechanism does, what leaves, what no ε promises."""

from __future__ import annotations

import math
from typing import Final

from silo_agent.trainer.privacy.mechanisms.protocol import Sensitivity
from silo_agent.trainer.privacy.settings import (
    MechanismSettings,
    NoneSettings,
    PrivateLabellerSettings,
    RandomizedResponseSettings,
    SensitivitySettings,
    TeacherVotesSettings,
    XorSettings,
)
from wire.privacy.declaration import Unit

ESTIMATE: Final = "estimate, not a guarantee"
_FALSE_ALARMS: Final = 0.05
_STRONG_ENOUGH: Final = 4.0
_WEAK: Final = " That is a weak promise: choose a smaller ε if the records are sensitive."


def number(value: float) -> str:
    """As silo.yaml has it, all digits."""
    return f"{value:.12g}"


def at_most(share: float) -> str:
    """A percentage, rounded up."""
    return f"{math.ceil(round(share * 1000, 9)) / 10:.1f}%"


def who(unit: Unit, column: str | None) -> str:
    """Whom the promise is about."""
    if unit is Unit.PATIENT:
        return f"every single patient (the column {column} says whose row it is)"
    return "every single row"


def neighbours(unit: Unit) -> str:
    """Which two data sets must look alike."""
    if unit is Unit.PATIENT:
        return (
            "Compared are any two data sets with equally many patients in which one patient, with all rows, "
            "is replaced by any other."
        )
    return (
        "Compared are any two data sets with equally many rows in which one row is replaced by any other. "
        "A patient with several rows is protected less: the ε of the rows add up. If there are such "
        "patients, name the column that tells them apart as data.patient_id."
    )


def meaning(epsilon: float, delta: float, seen: str) -> str:
    """What (ε, δ) means to somebody who is not a mathematician; `seen` is what the ε is of.

    The odds: (ε, δ)-indistinguishable outputs are each within δ (total variation) of a pair whose likelihood
    ratio never exceeds e^ε (Dwork and Roth 2014, lemma 3.17), hence "except with probability δ". The test: the
    region of false alarms and detections that (ε, δ) allows (Kairouz, Oh and Viswanath 2015), which is exact.
    """
    text = (
        "Think of someone who knows everyone else's record and wants to learn whether this one was X or Y. "
        f"Whatever they conclude from {seen}, the odds of X against Y shift by at most a factor "
        f"e^ε ≈ {factor(epsilon)}, except with probability at most δ = {number(delta)}. Put as a test: if "
        f"they cry “X” in {_FALSE_ALARMS:.0%} of the cases in which it was Y, they do so in at most "
        f"{at_most(detected(epsilon, delta))} of the cases in which it was X."
    )
    return text + (_WEAK if epsilon > _STRONG_ENOUGH else "")


def over_the_years(epsilon: float, delta: float) -> str:
    """The same for the lifetime of a data set, in brief."""
    text = (
        f"For all ballots ever made from the data set the factor is at most e^ε ≈ {factor(epsilon)}, and the "
        f"{_FALSE_ALARMS:.0%} become at most {at_most(detected(epsilon, delta))}."
    )
    return text + (_WEAK if epsilon > _STRONG_ENOUGH else "")


def factor(epsilon: float) -> str:
    """e^ε for a person."""
    value = math.exp(min(epsilon, 700.0))
    if value >= 10**6:
        return f"{value:.1e}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def detected(epsilon: float, delta: float, false_alarms: float = _FALSE_ALARMS) -> float:
    """The largest share of detections at a share of false alarms that (ε, δ) allows."""
    return min(
        1.0,
        math.exp(min(epsilon, 700.0)) * false_alarms + delta,
        1 - math.exp(-epsilon) * (1 - false_alarms - delta),
    )


def mechanism_sentence(settings: MechanismSettings) -> str:
    """What is done to a ballot, in one plain sentence."""
    match settings:
        case NoneSettings():
            return (
                "The silo's own model labels the public rows, and its labels are sent as they are."
            )
        case XorSettings(theta=None):
            return (
                "The silo's own model labels the public rows; each label becomes a row of bits, one per class, "
                "and every bit is flipped with the same fixed probability before it is sent."
            )
        case XorSettings():
            return (
                "The silo's own model labels the public rows; each label becomes a row of bits, one per class, "
                "and a random pattern, drawn with the Θ that silo.yaml gives, is added to every row before it "
                "is sent."
            )
        case RandomizedResponseSettings():
            return (
                "The silo's own model labels the public rows, and each label is sent as it is or replaced at "
                "random, with a fixed probability (randomised response)."
            )
        case TeacherVotesSettings():
            return _teachers(settings)
        case PrivateLabellerSettings():
            return _labeller(settings)


def _teachers(settings: TeacherVotesSettings) -> str:
    kind = "Laplace" if settings.noise == "laplace" else "Gaussian"
    only = (
        " Rows on which the teachers, with noise, do not agree clearly are left out."
        if settings.noise == "confident"
        else ""
    )
    return (
        f"The patients are divided into {settings.teachers} groups that share nobody, one model is trained on "
        f"each, the models vote on a limited number of public rows, and {kind} noise is added to the votes "
        f"before the winner is sent.{only}"
    )


def _labeller(settings: PrivateLabellerSettings) -> str:
    how = {
        "logistic": "by a few steps, each with Gaussian noise, on features that come from public data alone",
        "ebm": "as an explainable boosting machine with noise in every step",
        "sgd": "by noisy gradient descent on random samples of the rows (DP-SGD)",
    }[settings.head]
    return (
        f"A separate labelling model is trained once, {how}; this model labels the public rows, and however "
        "often it does, nothing further is spent. The silo's own model stays at home and labels nothing that "
        "is sent."
    )


def sensitivity_sentence(settings: SensitivitySettings) -> str:
    """On what the xor mechanism's ε rests."""
    match settings.source:
        case Sensitivity.WORST_CASE:
            return "It is assumed that one exchange can change every label, so that nothing is left to hope."
        case Sensitivity.STABILITY_BOUND:
            return (
                "The noise is made for as many changed labels as the papers' stability bound gives for a "
                f"stability of {number(settings.stability or 0)} at {settings.confidence:.0%} confidence. "
                "Nobody has proved that stability for this silo's model."
            )
        case Sensitivity.EMPIRICAL:
            return (
                f"The noise is made for as many changed labels as were seen when {settings.samples} records "
                "were left out one at a time. A record not tried may change more, and what was seen is itself "
                "private and not paid for."
            )


def what_leaves(settings: MechanismSettings, bits: str) -> tuple[str, ...]:
    """Everything that crosses the line, ε or not; `bits` says how much."""
    match settings:
        case NoneSettings():
            ballot = "one class label for each row of the public set, as the silo's model gives it"
        case XorSettings():
            ballot = "for each row of the public set one noisy bit per class"
        case RandomizedResponseSettings():
            ballot = "for each row of the public set one noisy label, or one noisy bit per class"
        case TeacherVotesSettings():
            ballot = "a noisy class label for some rows of the public set and an abstention for the others"
        case PrivateLabellerSettings():
            ballot = (
                "one class label for each row of the public set, made by the noisy labelling model; where a "
                "task asks for it, with a certainty from 0 to 15 by the same model"
            )
    return (
        f"{ballot[0].upper()}{ballot[1:]}{bits}.",
        "With it: the mechanism's name, ε, δ, the unit, whether ε is an estimate, and the noise level.",
        "That the silo takes part, when it answers, and its certificate.",
    )


NEVER_LEAVES: Final = (
    "Rows, features, labels and identifiers of patients.",
    "The silo's own model, its parameters, gradients and probabilities.",
    "The ledger, the seeds and the noise.",
)


def not_promised(unit: Unit, *, estimate: bool) -> tuple[str, ...]:
    """What an officer must not read into it."""
    patient = unit is Unit.PATIENT
    one, several = ("patient", "patients") if patient else ("row", "rows")
    group = "a family" if patient else "all those of one patient"
    return (
        f"Groups: for k {several} together, {group} for instance, ε is k times as large and δ more than that.",
        "General knowledge: what the labels teach about everyone with some illness holds for people whose "
        "records were never used, and for these too.",
        f"Other releases: publications, exports, other consortia, or a second silo that holds the same {one} "
        "add their own losses, which this ledger does not see.",
        f"That there are so many {several}, that the silo takes part, and how long it takes to answer are not "
        "hidden.",
        "Choices made by people who looked at the private data first (which learner, which features, which ε) "
        "are not counted.",
        "The public set, and the final model if someone exports it from here, are not protected.",
        *(
            (f"The ε above: it is an {ESTIMATE}, and must not be signed as if it were proved.",)
            if estimate
            else ()
        ),
    )
