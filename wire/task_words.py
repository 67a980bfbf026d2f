"""A task's method and rule in plain words: the same for the admin who defined it and the hospital that approves it."""

from __future__ import annotations

from wire.consensus_policy import ConsensusPolicy, Credibility, RuleName
from wire.methods import FedauxPolicy, FedktLevel, FedktPolicy, Method
from wire.task import TaskDefinition

_NOISE = {
    FedktLevel.L0: "no noise is added beyond what silo.yaml says",
    FedktLevel.L1: "the coordinator adds noise to the counts, which hides a whole silo",
    FedktLevel.L2: "the teachers' votes are noisy in the silo, which hides a patient",
}


def task_words(task: TaskDefinition) -> dict[str, str]:
    """What silos do and how their votes count, by keyword; keywords that say nothing are left out."""
    words = {"method": _method(task), "rule": _rule(task.consensus)}
    if task.consensus.rule in (RuleName.WEIGHTED, RuleName.PER_CLASS_THRESHOLD):
        words["weights"] = _weights(task.consensus)
    if task.label_spaces:
        words["classes"] = _classes(task)
    if task.extractor:
        words["extractor"] = (
            f"{task.extractor}: learned from the public set alone, comes from the coordinator; "
            + ("certainties need it" if task.fedaux else "learners may start from it")
        )
    return words


def _method(task: TaskDefinition) -> str:
    if task.fedkt:
        return f"{task.method} {_fedkt(task.fedkt)}"
    if task.fedaux:
        return f"{task.method}, {task.local_steps} local steps: {_fedaux(task.fedaux)}"
    if task.method is Method.COFED:
        return f"{task.method}: one vote among silos that may know different classes"
    apart = (
        f"; the public set is cut into {task.cross_fit} parts, each labelled by a learner that has not seen "
        "the consensus on it"
        if task.cross_fit > 1
        else ""
    )
    return f"{task.method}, {task.local_steps} local steps: train, vote, learn from the consensus, again{apart}"


def _fedkt(policy: FedktPolicy) -> str:
    parted = "once" if policy.partitions == 1 else f"{policy.partitions} times"
    agree = "" if policy.partitions == 1 else f", a vote only where all {policy.partitions} agree"
    return (
        f"{policy.level}: one vote. The silo's patients are dealt {parted} to {policy.teachers} teachers, who train "
        f"a student{agree}; {_NOISE[policy.level]}"
    )


def _fedaux(policy: FedauxPolicy) -> str:
    return (
        "a certainty of 4 bits leaves with each label, paid for once in the ledger. It is learned against "
        f"{policy.negatives:.1%} of the public rows (λ = {policy.regularisation:g}), on which no vote is cast"
    )


def _rule(policy: ConsensusPolicy) -> str:
    meaning = {
        RuleName.MAJORITY: "the class with most votes",
        RuleName.QUALIFIED_MAJORITY: f"the class with most votes if it has {policy.min_share:.1%} of them",
        RuleName.PER_CLASS_THRESHOLD: f"a class claims a row if more than {policy.threshold:.1%} of the silos that know "
        "it vote for it",
        RuleName.WEIGHTED: "the class with most votes, each counted by its silo's weight",
        RuleName.CERTAINTY_WEIGHTED: "the class with most votes, each counted by its certainty",
        RuleName.STAPLE: "the likeliest class, given how often each silo takes one class for another, "
        "which is estimated from all ballots",
        RuleName.TRIMMED: "the class with most votes, without the silos that agree least with the others "
        f"(at most {policy.trim:.1%} of them)",
    }
    return f"{policy.rule}: {meaning[policy.rule]}"


def _weights(policy: ConsensusPolicy) -> str:
    match policy.credibility:
        case Credibility.EQUAL:
            return "every silo counts alike"
        case Credibility.DATA_SIZE:
            return (
                "by data size: the number of patients (rows, where no column says who is whose), rounded down to a "
                "power of two, leaves with each ballot"
            )
        case Credibility.SET:
            named = ", ".join(f"{silo} {weight}" for silo, weight in sorted(policy.weights.items()))
            return f"set by the task: {named}; every other silo 1"


def _classes(task: TaskDefinition) -> str:
    known = "; ".join(
        f"{silo} knows {', '.join(labels)}" for silo, labels in sorted(task.label_spaces.items())
    )
    everyone = task.silos and set(task.silos) <= set(task.label_spaces)
    return known if everyone else f"{known}; every other silo all of them"
