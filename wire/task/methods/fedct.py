"""FedCT in a task: many rounds of training, voting and learning from the consensus, cross-fitted or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from wire.consilium.v1 import task_pb2
from wire.task.methods.rules import MethodRules

if TYPE_CHECKING:
    from wire.task.definition import TaskDefinition


class Fedct(MethodRules):
    """`cross_fit: k` cuts the public set into k parts, each labelled by a learner that has not seen its consensus."""

    name = "fedct"
    fields: ClassVar = {"cross_fit": "cross_fit belongs"}

    def sentence(self, task: TaskDefinition) -> str:
        """The loop, and whether it is cross-fitted."""
        apart = (
            f"; the public set is cut into {task.cross_fit} parts, each labelled by a learner that has not seen "
            "the consensus on it"
            if task.cross_fit > 1
            else ""
        )
        loop = "train, vote, learn from the consensus, again"
        return f"{super().sentence(task)}: {loop}{apart}"

    def to_proto(self, task: TaskDefinition) -> dict[str, Any]:
        """The number of parts."""
        return {"cross_fit": task.cross_fit}

    def from_proto(self, message: task_pb2.TaskDefinition) -> dict[str, Any]:
        """The number of parts; 0, which no sender of ours writes, means one."""
        return {"cross_fit": message.cross_fit or 1}
