"""What a silo.yaml promises, as a page that a data protection officer can sign."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from silo_agent.trainer.explain import words
from silo_agent.trainer.explain.costs import Costs, TaskFacts, noise_is_open
from silo_agent.trainer.methods.protocol import Disclosure
from silo_agent.trainer.methods.registry import any_disclosure
from silo_agent.trainer.privacy.budget import shown
from silo_agent.trainer.privacy.settings import (
    NoneSettings,
    PrivacySettings,
    XorSettings,
    has_own_noise,
)
from wire.privacy.declaration import MechanismName, Unit
from wire.runtime.terminal import size


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    heading: str
    paragraphs: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """The page."""

    dataset: str
    mechanism: MechanismName
    unit: Unit
    estimate: bool
    task_epsilon: float | None
    """What one task costs at most; None if there is no limit or it is not known."""
    lifetime_epsilon: float | None
    """What all tasks together cost at most; None as above."""
    delta: float
    fingerprint: str
    """SHA-256 of what was explained: the `privacy` section and the unit."""
    sections: tuple[Section, ...]

    @property
    def kind(self) -> str:
        """A guarantee, an estimate, or neither."""
        bounded = self.task_epsilon is not None or self.lifetime_epsilon is not None
        if not bounded:
            return "none"
        return words.ESTIMATE if self.estimate else "guarantee"

    def as_json(self) -> dict[str, Any]:
        """The page for scripts."""
        return {
            "dataset": self.dataset,
            "mechanism": self.mechanism,
            "unit": self.unit,
            "neighbours": "replace one",
            "kind": self.kind,
            "task_epsilon": self.task_epsilon,
            "lifetime_epsilon": self.lifetime_epsilon,
            "delta": self.delta,
            "fingerprint": self.fingerprint,
            "sections": {section.heading: list(section.paragraphs) for section in self.sections},
        }


def explain(
    settings: PrivacySettings,
    patient_column: str | None,
    task: TaskFacts | None = None,
    costs: Costs | None = None,
) -> Explanation:
    """The page for the `privacy` section of a silo.yaml; about one task if `task` and its `costs` are given."""
    unit = Unit.ROW if patient_column is None else Unit.PATIENT
    usable = not noise_is_open(settings)
    epsilon = _task_epsilon(settings, costs)
    lifetime = settings.lifetime_epsilon if usable else None
    sections = [
        Section("What is promised", _promise(settings, unit, patient_column, epsilon, task, costs))
    ]
    if meanings := _meanings(epsilon, lifetime, settings.delta):
        sections.append(Section(_meaning_heading(settings), meanings))
    sections += [
        Section("How", _how(settings, task)),
        Section("What leaves", _what_leaves(settings, task)),
        Section("What never leaves", words.NEVER_LEAVES),
        Section("At the limit", _limit(settings)),
        Section("What is not promised", words.not_promised(unit, estimate=settings.estimated)),
    ]
    return Explanation(
        dataset=settings.dataset,
        mechanism=settings.mechanism.name,
        unit=unit,
        estimate=settings.estimated,
        task_epsilon=epsilon,
        lifetime_epsilon=lifetime,
        delta=settings.delta,
        fingerprint=_fingerprint(settings, patient_column),
        sections=tuple(sections),
    )


def _task_epsilon(settings: PrivacySettings, costs: Costs | None) -> float | None:
    """The budget; or what the noise costs that silo.yaml itself sets, if that is less.

    Noise chosen for a budget may cost a trifle less, but how much depends on how many patients there are.
    """
    known = [] if settings.epsilon is None else [settings.epsilon]
    fixed = costs if has_own_noise(settings.mechanism) else None
    if fixed is not None and fixed.epsilon is not None:
        known.append(fixed.epsilon)
    return min(known, default=None)


def _promise(
    settings: PrivacySettings,
    unit: Unit,
    column: str | None,
    epsilon: float | None,
    task: TaskFacts | None,
    costs: Costs | None,
) -> tuple[str, ...]:
    if isinstance(settings.mechanism, NoneSettings):
        return (
            f"There is no guarantee for the data set “{settings.dataset}”. The silo's labels leave without "
            "noise (ε = ∞). A label may depend on one patient alone, and someone who sees enough labels may "
            "tell whether a certain patient is in the data. What protects here is only that labels say little.",
        )
    if noise_is_open(settings):
        return (
            "This silo.yaml leaves open how much noise to add: privacy.epsilon is not set, and "
            f"{settings.mechanism.name} names no noise of its own. No ballot can be made with it, so nothing "
            "is promised. Set privacy.epsilon.",
        )
    said = [_one_task(settings, epsilon, task, costs), _lifetime(settings, epsilon)]
    protected = words.who(unit, column)
    if settings.estimated:
        opening = (
            f"This is an {words.ESTIMATE}. If the assumption below holds, the ballots made from the data set "
            f"“{settings.dataset}” are differentially private for {protected} as follows; if it does not, the "
            "true ε is larger."
        )
        closing = "Ask for sensitivity: worst_case if you need a proof."
    elif epsilon is None and settings.lifetime_epsilon is None:
        opening = f"The ballots made from the data set “{settings.dataset}” get noise, meant for {protected}."
        closing = "No number is promised. Set privacy.epsilon, or name a task to see what it costs."
    else:
        opening = (
            f"The ballots made from the data set “{settings.dataset}” are differentially private for "
            f"{protected}."
        )
        closing = (
            "This is a guarantee: it follows from the noise by composition, whatever the receiver knows or "
            "computes, and the ledger is debited before a ballot can leave."
        )
    return (" ".join([opening, *said, words.neighbours(unit), closing]),)


def _one_task(
    settings: PrivacySettings, epsilon: float | None, task: TaskFacts | None, costs: Costs | None
) -> str:
    delta = words.number(settings.delta)
    about = "one task" if task is None else task.called
    if costs is not None and costs.misfit:
        others = _one_task(settings, epsilon, None, None)
        return f"The silo cannot take part in {about}: {costs.misfit.rstrip('.')}. {others}"
    if epsilon is None:
        return (
            f"What {about} costs depends on its rows and rounds, for silo.yaml sets the noise and no "
            "privacy.epsilon: there is no limit for a single task."
        )
    word = "is estimated to cost" if settings.estimated else "costs"
    return (
        f"Over all its rounds together, {about} {word} at most ε = {shown(epsilon)} at "
        f"δ = {delta}.{_ballots(task, costs)}"
    )


def _ballots(task: TaskFacts | None, costs: Costs | None) -> str:
    """How many ballots of a known task are paid for; nothing if each round's is."""
    if task is None or costs is None:
        return ""
    if costs.payable is not None and costs.payable < costs.paid_rounds:
        if costs.payable == 0:
            return (
                " With the noise that silo.yaml sets, not one ballot fits that budget: the silo would abstain "
                "from the first round on."
            )
        return (
            f" With the noise that silo.yaml sets, the budget pays for {costs.payable} of "
            f"{costs.paid_rounds} ballots; the silo abstains after that."
        )
    if costs.paid_rounds < task.rounds:
        paid = "One ballot is" if costs.paid_rounds == 1 else f"{costs.paid_rounds} ballots are"
        return f" {paid} paid for; later rounds repeat the last one, for nothing."
    return ""


def _lifetime(settings: PrivacySettings, epsilon: float | None) -> str:
    if settings.lifetime_epsilon is not None:
        word = "are estimated to cost" if settings.estimated else "cost"
        return (
            f"All tasks ever voted in with this data set together {word} at most "
            f"ε = {shown(settings.lifetime_epsilon)} at the same δ. What the ledger says was spent "
            "before counts: after a ballot without noise nothing more can be paid for, and where an entry is "
            "marked as an estimate, the total is one. Tasks are chosen in sight of earlier ones, so a privacy filter "
            "decides, a number that allows for that; within one task, whose noise is fixed before its first "
            "ballot, the smaller number of composed privacy loss distributions is shown."
        )
    # Of tasks nobody has named yet, only the budget is known.
    each = settings.epsilon if settings.epsilon is not None else epsilon
    added = (
        f" (k such tasks: at most ε = k × {shown(each)} at δ = k × {words.number(settings.delta)})"
        if each is not None
        else ""
    )
    return (
        f"There is no limit over several tasks: every further one adds to the loss{added}. "
        "privacy.lifetime_epsilon sets one."
    )


def _meanings(epsilon: float | None, lifetime: float | None, delta: float) -> tuple[str, ...]:
    if epsilon is not None:
        later = () if lifetime is None else (words.over_the_years(lifetime, delta),)
        return (words.meaning(epsilon, delta, "the ballots of one task"), *later)
    if lifetime is not None:
        return (words.meaning(lifetime, delta, "all ballots ever made from the data set"),)
    return ()


def _meaning_heading(settings: PrivacySettings) -> str:
    return (
        "What the numbers would mean, were they proved"
        if settings.estimated
        else "What the numbers mean"
    )


def _how(settings: PrivacySettings, task: TaskFacts | None) -> tuple[str, ...]:
    said = [words.mechanism_sentence(settings.mechanism)]
    if isinstance(settings.mechanism, XorSettings):
        said.append(words.sensitivity_sentence(settings.mechanism.sensitivity))
    return (*said, *_disclosed(settings, task).how)


def _what_leaves(settings: PrivacySettings, task: TaskFacts | None) -> tuple[str, ...]:
    ballot, *others = words.what_leaves(settings.mechanism, _amount(task))
    return (ballot, *_disclosed(settings, task).leaves, *others)


def _disclosed(settings: PrivacySettings, task: TaskFacts | None) -> Disclosure:
    """What the task's method releases beside ballots; where nothing is known of the task, what any may."""
    if task is None:
        return any_disclosure(settings)
    return Disclosure() if task.method is None else task.method.disclosure(settings)


def _amount(task: TaskFacts | None) -> str:
    if task is None:
        return ""
    shape = task.shape
    return f": {shape.rows} rows × {shape.planes} bits, {size(shape.size_bytes)}, in each of {task.rounds} rounds"


def _limit(settings: PrivacySettings) -> tuple[str, ...]:
    if isinstance(settings.mechanism, NoneSettings):
        return ("There is no limit: without noise there is no budget to keep.",)
    if settings.epsilon is None and settings.lifetime_epsilon is None:
        return (
            "silo.yaml sets no budget: the silo votes in every round it is asked to, and the ledger only "
            "counts.",
        )
    return (
        "Before a ballot is made the ledger is asked whether the budget can pay for it. If not, the silo "
        "abstains on every row, which costs nothing, stays in the federation and keeps receiving the consensus.",
        "A ballot that was paid for and lost on the way is sent again as it was, bit for bit, and not paid "
        "for twice.",
    )


def _fingerprint(settings: PrivacySettings, patient_column: str | None) -> str:
    # Pages signed before this setting existed keep their fingerprint.
    unset = set() if settings.same_patients_as else {"same_patients_as"}
    privacy = settings.model_dump(mode="json", exclude=unset)
    explained = {"privacy": privacy, "patient_id": patient_column}
    text = json.dumps(explained, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
