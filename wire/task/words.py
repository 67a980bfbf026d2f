"""A task's method and rule in plain words: the same for the admin who defined it and the hospital that approves it."""

from __future__ import annotations

from wire.task.consensus_policy import ConsensusPolicy, Credibility, RuleName
from wire.task.definition import TaskDefinition
from wire.task.methods import rules_of


def task_words(task: TaskDefinition) -> dict[str, str]:
    """What silos do and how their votes count, by keyword; keywords that say nothing are left out."""
    method = rules_of(task.method)
    words = {"method": method.sentence(task), "rule": _rule(task.consensus)}
    if task.consensus.rule.weighs_silos:
        words["weights"] = _weights(task.consensus)
    words |= method.details(task)
    if task.extractor:
        words["extractor"] = (
            f"{task.extractor}: learned from the public set alone, comes from the coordinator; "
            f"{method.extractor_use}"
        )
    return words


def _rule(policy: ConsensusPolicy) -> str:
    return f"{policy.rule}: {_meaning(policy)}"


def _meaning(policy: ConsensusPolicy) -> str:
    match policy.rule:
        case RuleName.MAJORITY:
            return "the class with most votes"
        case RuleName.QUALIFIED_MAJORITY:
            return f"the class with most votes if it has {policy.min_share:.1%} of them"
        case RuleName.PER_CLASS_THRESHOLD:
            return (
                f"a class claims a row if more than {policy.threshold:.1%} of the silos that know "
                "it vote for it"
            )
        case RuleName.WEIGHTED:
            return "the class with most votes, each counted by its silo's weight"
        case RuleName.CERTAINTY_WEIGHTED:
            return "the class with most votes, each counted by its certainty"
        case RuleName.STAPLE:
            return (
                "the likeliest class, given how often each silo takes one class for another, "
                "which is estimated from all ballots"
            )
        case RuleName.TRIMMED:
            return (
                "the class with most votes, without the silos that agree least with the others "
                f"(at most {policy.trim:.1%} of them)"
            )


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
