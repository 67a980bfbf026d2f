"""What another rule would have made of a closed round's ballots. Pure; nothing of it is published."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from coordinator.consensus import Agreement, BallotSource, changed_rows, elect, labels_for
from wire.ballot import ABSTAIN, Packed
from wire.errors import PREVIEW_REFUSED, Refusal
from wire.privacy.declaration import Declaration
from wire.task.consensus_policy import ConsensusPolicy
from wire.task.definition import TaskDefinition


@dataclass(frozen=True)
class Preview:
    """What a rule would have published, as one sees it who knows all classes."""

    abstained_rows: int
    differing_rows: int
    """Rows on which it differs from what was published, abstentions included."""
    labelled_rows: tuple[int, ...]
    """Rows by class."""
    agreement: Mapping[str, Agreement]


def require_previewable(
    task: TaskDefinition, policy: ConsensusPolicy, voted: Collection[str]
) -> None:
    """PREVIEW_REFUSED, with the reason, where there is nothing to count or counting would cost something."""
    if task.privacy.party_gamma is not None:
        why = "its counts are published behind noise, and a preview would be another release"
        raise Refusal(PREVIEW_REFUSED, task=task.name, why=why)
    if task.encoding not in policy.rule.encodings:
        fitting = " or ".join(policy.rule.encodings)
        why = f"rule {policy.rule} reads {fitting} ballots, and these are {task.encoding}"
        raise Refusal(PREVIEW_REFUSED, task=task.name, why=why)
    strangers = sorted(set(policy.weights) - set(voted))
    if strangers:
        why = f"weights name {', '.join(strangers)}, of whom there is no ballot in that round"
        raise Refusal(PREVIEW_REFUSED, task=task.name, why=why)


def preview(
    task: TaskDefinition,
    policy: ConsensusPolicy,
    round_number: int,
    declared: Mapping[str, Declaration],
    ballots: BallotSource,
    published: Packed,
) -> Preview:
    """What `policy` makes of the ballots of round `round_number`, which published `published`."""
    everything = range(len(task.labels))
    outcome = elect(_PreviewedTask.of(task, policy), round_number, declared, ballots)
    labels = outcome.labels()
    counted = np.bincount(labels[labels != ABSTAIN], minlength=len(task.labels))
    return Preview(
        abstained_rows=outcome.abstained_rows,
        differing_rows=changed_rows(
            labels_for(published, task.consensus_shape, everything), labels
        ),
        labelled_rows=tuple(counted.tolist()),
        agreement=outcome.agreement,
    )


class _PreviewedTask(TaskDefinition):
    """A task under another policy whose ties fall as the task's own: what differs, differs by the rule."""

    ties: str

    @classmethod
    def of(cls, task: TaskDefinition, policy: ConsensusPolicy) -> _PreviewedTask:
        """Not validated anew: a rule may be tried that the task's method would not choose."""
        return cls.model_construct(**{**dict(task), "consensus": policy, "ties": task.digest})

    @property
    def digest(self) -> str:
        """The task's own."""
        return self.ties
