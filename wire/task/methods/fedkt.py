"""FedKT in a task: the `fedkt:` section, its three privacy levels, and one vote that stands for its students."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from wire.consilium.v1 import task_pb2
from wire.enums import WireEnum
from wire.privacy.declaration import MechanismName
from wire.task.methods.rules import MethodRules

if TYPE_CHECKING:
    from wire.task.definition import TaskDefinition


class FedktLevel(WireEnum):
    """Where FedKT adds noise."""

    L0 = "L0", task_pb2.FEDKT_LEVEL_L0
    """Nowhere."""
    L1 = "L1", task_pb2.FEDKT_LEVEL_L1
    """On the counts, at the coordinator: a whole silo is hidden."""
    L2 = "L2", task_pb2.FEDKT_LEVEL_L2
    """On the teachers' votes, in the silo: a patient is hidden."""

    @property
    def papers_numbers(self) -> tuple[int, int]:
        """Partitions and teachers, as the paper has them."""
        match self:
            case FedktLevel.L0:
                return 2, 5
            case FedktLevel.L1:
                return 1, 5
            case FedktLevel.L2:
                return 1, 25

    @property
    def noise(self) -> str:
        """Who adds noise to what, in words."""
        match self:
            case FedktLevel.L0:
                return "no noise is added beyond what silo.yaml says"
            case FedktLevel.L1:
                return "the coordinator adds noise to the counts, which hides a whole silo"
            case FedktLevel.L2:
                return "the teachers' votes are noisy in the silo, which hides a patient"


class FedktPolicy(BaseModel):
    """The `fedkt:` section of task.yaml: how a silo labels the public set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    level: FedktLevel = FedktLevel.L0
    partitions: Annotated[int, Field(ge=1, le=64)] = 2
    """s: times the silo's rows are partitioned; a vote is cast where all s students agree. 1 at L1 and L2."""
    teachers: Annotated[int, Field(ge=1, le=1000)] = 5
    """t: teachers per partition, each with rows of its own. 25 at L2."""

    @model_validator(mode="before")
    @classmethod
    def _as_the_paper_has_it(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or values.get("level") not in set(FedktLevel):
            return values
        partitions, teachers = FedktLevel(values["level"]).papers_numbers
        return {"partitions": partitions, "teachers": teachers, **values}

    def to_proto(self) -> task_pb2.FedktPolicy:
        """As the wire carries it."""
        return task_pb2.FedktPolicy(
            level=self.level.to_proto(), partitions=self.partitions, teachers=self.teachers
        )

    @classmethod
    def from_proto(cls, message: task_pb2.FedktPolicy) -> Self:
        """Reads and checks a policy; raises pydantic's ValidationError."""
        return cls.model_validate(
            {
                "level": FedktLevel.value_of(message.level),
                "partitions": message.partitions,
                "teachers": message.teachers,
            }
        )


class Fedkt(MethodRules):
    """One round; L1 needs the coordinator's noise, L2 the silo's."""

    name = "fedkt"
    fields: ClassVar = {"fedkt": "the section fedkt belongs"}
    defaults: ClassVar = {"rounds": {"max_rounds": 1}, "fedkt": {}}

    def require(self, task: TaskDefinition) -> None:
        """One round, and noise where the level says it is added."""
        if task.rounds.max_rounds != 1:
            raise ValueError("method fedkt has one round; leave rounds.max_rounds out")
        level = _policy(task).level
        if (task.privacy.party_gamma is not None) != (level is FedktLevel.L1):
            raise ValueError("fedkt.level L1 and privacy.party_gamma go together")
        teachers = task.privacy.mechanisms == (MechanismName.TEACHER_VOTES,)
        if level is FedktLevel.L2 and not teachers:
            raise ValueError("fedkt.level L2 needs privacy.mechanisms: [teacher_votes]")

    def sentence(self, task: TaskDefinition) -> str:
        """Teachers, students, and who adds noise."""
        policy = _policy(task)
        parted = "once" if policy.partitions == 1 else f"{policy.partitions} times"
        agree = (
            "" if policy.partitions == 1 else f", a vote only where all {policy.partitions} agree"
        )
        return (
            f"{task.method} {policy.level}: one vote. The silo's patients are dealt {parted} to {policy.teachers} "
            f"teachers, who train a student{agree}; {policy.level.noise}"
        )

    def votes_per_ballot(self, task: TaskDefinition) -> int:
        """A ballot stands for its silo's students, who all agree."""
        return _policy(task).partitions

    def to_proto(self, task: TaskDefinition) -> dict[str, Any]:
        """The section."""
        return {"fedkt": task.fedkt.to_proto()} if task.fedkt else {}

    def from_proto(self, message: task_pb2.TaskDefinition) -> dict[str, Any]:
        """The section."""
        return {"fedkt": FedktPolicy.from_proto(message.fedkt)} if message.HasField("fedkt") else {}


def _policy(task: TaskDefinition) -> FedktPolicy:
    return task.fedkt or FedktPolicy()
