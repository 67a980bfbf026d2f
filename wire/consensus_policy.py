"""The `consensus:` section of task.yaml: which rule publishes a label, and whose vote counts how much."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from wire.ballot import Encoding
from wire.consilium.v1 import task_pb2
from wire.naming import Name
from wire.privacy.declaration import wire_name


class RuleName(StrEnum):
    """How ballots become a consensus."""

    MAJORITY = "majority"
    QUALIFIED_MAJORITY = "qualified_majority"
    PER_CLASS_THRESHOLD = "per_class_threshold"
    WEIGHTED = "weighted"
    CERTAINTY_WEIGHTED = "certainty_weighted"
    STAPLE = "staple"
    TRIMMED = "trimmed"

    @property
    def encodings(self) -> tuple[Encoding, ...]:
        """The ballots it can read."""
        match self:
            case RuleName.CERTAINTY_WEIGHTED:
                return (Encoding.SCORED,)
            case RuleName.STAPLE | RuleName.TRIMMED:
                return (Encoding.INDEX, Encoding.SCORED)
            case _:
                return tuple(Encoding)

    @property
    def hides_parties(self) -> bool:
        """Whether it needs counts alone, so that noise on them hides a whole silo."""
        return self in (
            RuleName.MAJORITY,
            RuleName.QUALIFIED_MAJORITY,
            RuleName.CERTAINTY_WEIGHTED,
        )


class Credibility(StrEnum):
    """Where a silo's weight comes from."""

    EQUAL = "equal"
    DATA_SIZE = "data_size"
    """The power of two below the number of patients (or rows) it declares."""
    SET = "set"
    """The task says it."""


Share = Annotated[float, Field(ge=0.001, le=1)]
Weight = Annotated[int, Field(ge=0, le=1_000_000)]


class ConsensusPolicy(BaseModel):
    """Which rule publishes a label, and when it abstains. Shares are kept to a thousandth."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: RuleName = RuleName.MAJORITY
    min_share: Share = 0.9
    """`qualified_majority`: share of cast votes the winner needs."""
    threshold: Annotated[float, Field(ge=0, lt=1)] = 0.3
    """`per_class_threshold`: α; a class claims a row if more than this share of those who know it voted for it."""
    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    """`trimmed`: share of the silos left out at most."""
    credibility: Credibility = Credibility.EQUAL
    """`weighted` and `per_class_threshold`: where a silo's weight comes from."""
    weights: dict[Name, Weight] = Field(default_factory=dict)
    """With `credibility: set`: what each silo counts; 1 for those not named."""

    @model_validator(mode="before")
    @classmethod
    def _weights_are_set(cls, values: Any) -> Any:
        # Whoever writes weights means them.
        if isinstance(values, dict) and values.get("weights") and "credibility" not in values:
            return {**values, "credibility": Credibility.SET}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.weights and self.credibility is not Credibility.SET:
            raise ValueError(f"weights are given, but credibility is {self.credibility}")
        if self.credibility is Credibility.SET and not any(self.weights.values()):
            raise ValueError("credibility: set needs weights, and at least one above 0")
        weighing = self.rule in (RuleName.WEIGHTED, RuleName.PER_CLASS_THRESHOLD)
        if not weighing and self.credibility is not Credibility.EQUAL:
            raise ValueError(f"rule {self.rule} counts every silo alike; leave credibility out")
        if self.rule is RuleName.WEIGHTED and self.credibility is Credibility.EQUAL:
            raise ValueError("rule weighted needs credibility: data_size, or weights by silo")
        return self

    @property
    def min_share_permille(self) -> int:
        """The share as the wire carries it."""
        return round(self.min_share * 1000)

    @property
    def threshold_permille(self) -> int:
        """The threshold as the wire carries it."""
        return round(self.threshold * 1000)

    @property
    def trim_permille(self) -> int:
        """The trimmed share as the wire carries it."""
        return round(self.trim * 1000)

    @property
    def defaulted(self) -> set[str]:
        """Settings that later versions brought and that say nothing here."""
        plain = ConsensusPolicy()
        later = ("threshold", "trim", "credibility", "weights")
        return {name for name in later if getattr(self, name) == getattr(plain, name)}

    def to_proto(self) -> task_pb2.ConsensusPolicy:
        """As the wire carries it: integers only."""
        return task_pb2.ConsensusPolicy(
            rule=_RULES[self.rule],
            min_share_permille=self.min_share_permille,
            threshold_permille=self.threshold_permille,
            trim_permille=self.trim_permille,
            credibility=_CREDIBILITY[self.credibility],
            weights=self.weights,
        )

    @classmethod
    def from_proto(cls, message: task_pb2.ConsensusPolicy) -> Self:
        """Reads and checks a policy; raises pydantic's ValidationError."""
        return cls.model_validate(
            {
                "rule": wire_name(_RULES, message.rule),
                "min_share": message.min_share_permille / 1000,
                "threshold": message.threshold_permille / 1000,
                "trim": message.trim_permille / 1000,
                "credibility": wire_name(_CREDIBILITY, message.credibility),
                "weights": dict(message.weights),
            }
        )


_RULES = {
    RuleName.MAJORITY: task_pb2.CONSENSUS_RULE_MAJORITY,
    RuleName.QUALIFIED_MAJORITY: task_pb2.CONSENSUS_RULE_QUALIFIED_MAJORITY,
    RuleName.PER_CLASS_THRESHOLD: task_pb2.CONSENSUS_RULE_PER_CLASS_THRESHOLD,
    RuleName.WEIGHTED: task_pb2.CONSENSUS_RULE_WEIGHTED,
    RuleName.CERTAINTY_WEIGHTED: task_pb2.CONSENSUS_RULE_CERTAINTY_WEIGHTED,
    RuleName.STAPLE: task_pb2.CONSENSUS_RULE_STAPLE,
    RuleName.TRIMMED: task_pb2.CONSENSUS_RULE_TRIMMED,
}
_CREDIBILITY = {
    Credibility.EQUAL: task_pb2.CREDIBILITY_EQUAL,
    Credibility.DATA_SIZE: task_pb2.CREDIBILITY_DATA_SIZE,
    Credibility.SET: task_pb2.CREDIBILITY_SET,
}
