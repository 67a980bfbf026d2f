"""The papers' methods, and what a task may tell each of them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from wire.consilium.v1 import task_pb2
from wire.privacy.declaration import wire_name


class Method(StrEnum):
    """Which of the papers' methods the silos follow."""

    FEDCT = "fedct"
    FEDKT = "fedkt"
    COFED = "cofed"
    FEDAUX = "fedaux"


DEFAULTS: Mapping[Method, Mapping[str, Any]] = {
    Method.FEDCT: {},
    Method.FEDKT: {"rounds": {"max_rounds": 1}},
    Method.COFED: {"rounds": {"max_rounds": 1}, "consensus": {"rule": "per_class_threshold"}},
    Method.FEDAUX: {"encoding": "scored", "consensus": {"rule": "certainty_weighted"}},
}
"""What task.yaml means where it names a method and says no more."""


class FedktLevel(StrEnum):
    """Where FedKT adds noise."""

    L0 = "L0"
    """Nowhere."""
    L1 = "L1"
    """On the counts, at the coordinator: a whole silo is hidden."""
    L2 = "L2"
    """On the teachers' votes, in the silo: a patient is hidden."""


_FEDKT = {FedktLevel.L0: (2, 5), FedktLevel.L1: (1, 5), FedktLevel.L2: (1, 25)}
"""Partitions and teachers, as the paper has them."""


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
        partitions, teachers = _FEDKT[FedktLevel(values["level"])]
        return {"partitions": partitions, "teachers": teachers, **values}

    def to_proto(self) -> task_pb2.FedktPolicy:
        """As the wire carries it."""
        return task_pb2.FedktPolicy(
            level=_LEVELS[self.level], partitions=self.partitions, teachers=self.teachers
        )

    @classmethod
    def from_proto(cls, message: task_pb2.FedktPolicy) -> Self:
        """Reads and checks a policy; raises pydantic's ValidationError."""
        return cls.model_validate(
            {
                "level": wire_name(_LEVELS, message.level),
                "partitions": message.partitions,
                "teachers": message.teachers,
            }
        )


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


_LEVELS = {
    FedktLevel.L0: task_pb2.FEDKT_LEVEL_L0,
    FedktLevel.L1: task_pb2.FEDKT_LEVEL_L1,
    FedktLevel.L2: task_pb2.FEDKT_LEVEL_L2,
}
METHODS = {
    Method.FEDCT: task_pb2.METHOD_FEDCT,
    Method.FEDKT: task_pb2.METHOD_FEDKT,
    Method.COFED: task_pb2.METHOD_COFED,
    Method.FEDAUX: task_pb2.METHOD_FEDAUX,
}
