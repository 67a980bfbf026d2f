"""CoFED in a task: one vote among silos that may know different classes, which `label_spaces:` names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from wire.consilium.v1 import task_pb2
from wire.task.consensus_policy import RuleName
from wire.task.methods.rules import MethodRules

if TYPE_CHECKING:
    from wire.task.definition import TaskDefinition


class Cofed(MethodRules):
    """One round under the per-class threshold; a silo that `label_spaces` does not name knows every class."""

    name = "cofed"
    fields: ClassVar = {"label_spaces": "label_spaces belong"}
    defaults: ClassVar = {"rounds": {"max_rounds": 1}, "consensus": {"rule": "per_class_threshold"}}

    def require(self, task: TaskDefinition) -> None:
        """Label spaces that name labels and silos of the task, the per-class rule, one round."""
        for silo, known in task.label_spaces.items():
            strange = sorted(set(known) - set(task.labels))
            if strange or not known or len(set(known)) < len(known):
                raise ValueError(
                    f"label_spaces.{silo} must name some of the labels, each once"
                    + (f"; {', '.join(strange)} is not among them" if strange else "")
                )
            if task.silos and silo not in task.silos:
                raise ValueError(f"label_spaces names {silo}, which does not take part")
        if task.consensus.rule is not RuleName.PER_CLASS_THRESHOLD:
            raise ValueError("method cofed needs consensus.rule: per_class_threshold")
        if task.rounds.max_rounds != 1:
            raise ValueError("method cofed has one round; leave rounds.max_rounds out")

    def sentence(self, task: TaskDefinition) -> str:
        """What it is for."""
        return f"{task.method}: one vote among silos that may know different classes"

    def details(self, task: TaskDefinition) -> dict[str, str]:
        """Which silo knows which classes."""
        if not task.label_spaces:
            return {}
        known = "; ".join(
            f"{silo} knows {', '.join(labels)}"
            for silo, labels in sorted(task.label_spaces.items())
        )
        everyone = task.silos and set(task.silos) <= set(task.label_spaces)
        return {"classes": known if everyone else f"{known}; every other silo all of them"}

    def label_space(self, task: TaskDefinition, silo: str) -> tuple[int, ...]:
        """The classes the task says the silo knows."""
        known = set(task.label_spaces.get(silo, task.labels))
        return tuple(index for index, label in enumerate(task.labels) if label in known)

    def to_proto(self, task: TaskDefinition) -> dict[str, Any]:
        """The classes by silo."""
        spaces = task.label_spaces.items()
        return {"label_spaces": {silo: task_pb2.LabelSpace(labels=known) for silo, known in spaces}}

    def from_proto(self, message: task_pb2.TaskDefinition) -> dict[str, Any]:
        """The classes by silo."""
        spaces = message.label_spaces.items()
        return {"label_spaces": {silo: tuple(known.labels) for silo, known in spaces}}
