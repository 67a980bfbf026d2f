"""What a method decides about a task: its own fields, their defaults, requirements, words and wire form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from wire.consilium.v1 import task_pb2

if TYPE_CHECKING:
    from wire.task.definition import TaskDefinition


class MethodRules:
    """The rules of a method that has no settings of its own; one that has some overrides what differs."""

    name: ClassVar[str] = ""
    """Value of its member of `Method`."""
    fields: ClassVar[Mapping[str, str]] = {}
    """Fields of the task definition that only this method reads, each with the words that begin the refusal of
    one that is given to another method: `{"cross_fit": "cross_fit belongs"}`."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """What task.yaml means where it names the method and says no more; sections are merged key by key."""
    extractor_use: ClassVar[str] = "learners may start from it"
    """What a silo does with the task's extractor."""

    def require(self, task: TaskDefinition) -> None:
        """Raises ValueError, with a sentence for task.yaml's author, if the method cannot run the task."""

    def sentence(self, task: TaskDefinition) -> str:
        """What a silo does in the task, in words."""
        return f"{task.method}, {task.local_steps} local steps"

    def details(self, task: TaskDefinition) -> dict[str, str]:
        """Further lines about the task by keyword; those that say nothing are left out."""
        return {}

    def votes_per_ballot(self, task: TaskDefinition) -> int:
        """How many votes a ballot counts."""
        return 1

    def label_space(self, task: TaskDefinition, silo: str) -> tuple[int, ...]:
        """Indices of the classes a silo knows, in ascending order."""
        return tuple(range(len(task.labels)))

    def to_proto(self, task: TaskDefinition) -> dict[str, Any]:
        """The method's own fields as arguments of the wire's TaskDefinition."""
        return {}

    def from_proto(self, message: task_pb2.TaskDefinition) -> dict[str, Any]:
        """The method's own fields as the wire carries them, not yet validated; absent ones are left out."""
        return {}
