"""FEDAUX in a task: the `fedaux:` section, the extractor it needs, and certainties that leave with the labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field

from wire.consilium.v1 import task_pb2
from wire.task.methods.rules import MethodRules

if TYPE_CHECKING:
    from wire.task.definition import TaskDefinition


class FedauxPolicy(BaseModel):
    """The `fedaux:` section of task.yaml: what certainties are learned from. Kept to thousandths."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    negatives: Annotated[float, Field(ge=0.01, le=0.9)] = 0.2
    """Share of the public rows that certainties are learned against; no vote is cast on these."""
    regularisation: Annotated[float, Field(ge=0.001, le=1000)] = 0.1
    """λ of the certainty model."""

    def to_proto(self) -> task_pb2.FedauxPolicy:
        """As the wire carries it."""
        return task_pb2.FedauxPolicy(
            negatives_permille=round(self.negatives * 1000),
            regularisation_permille=round(self.regularisation * 1000),
        )

    @classmethod
    def from_proto(cls, message: task_pb2.FedauxPolicy) -> Self:
        """Reads and checks a policy; raises pydantic's ValidationError."""
        return cls.model_validate(
            {
                "negatives": message.negatives_permille / 1000,
                "regularisation": message.regularisation_permille / 1000,
            }
        )


class Fedaux(MethodRules):
    """Scored ballots, counted by their certainty unless the task says otherwise."""

    name = "fedaux"
    fields: ClassVar = {"fedaux": "the section fedaux belongs"}
    defaults: ClassVar = {
        "encoding": "scored",
        "consensus": {"rule": "certainty_weighted"},
        "fedaux": {},
    }
    extractor_use = "certainties need it"

    def require(self, task: TaskDefinition) -> None:
        """An extractor."""
        if not task.extractor:
            raise ValueError(
                "method fedaux needs an extractor: see `consilium public-set pretrain`"
            )

    def sentence(self, task: TaskDefinition) -> str:
        """What leaves with a label, and what it was learned from."""
        policy = task.fedaux or FedauxPolicy()
        return (
            f"{super().sentence(task)}: a certainty of 4 bits leaves with each label, paid for once in the ledger. "
            f"It is learned against {policy.negatives:.1%} of the public rows (λ = {policy.regularisation:g}), "
            "on which no vote is cast"
        )

    def to_proto(self, task: TaskDefinition) -> dict[str, Any]:
        """The section."""
        return {"fedaux": task.fedaux.to_proto()} if task.fedaux else {}

    def from_proto(self, message: task_pb2.TaskDefinition) -> dict[str, Any]:
        """The section."""
        return (
            {"fedaux": FedauxPolicy.from_proto(message.fedaux)}
            if message.HasField("fedaux")
            else {}
        )
