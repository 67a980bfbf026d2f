"""The `consensus:` section of task.yaml: which rule publishes a label, and whose vote counts how much."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from wire.ballot import Encoding
from wire.consilium.v1 import task_pb2
from wire.enums import WireEnum
from wire.identity.naming import Name


class RuleName(WireEnum):
    """How ballots become a consensus."""

    MAJORITY = "majority", task_pb2.CONSENSUS_RULE_MAJORITY
    QUALIFIED_MAJORITY = "qualified_majority", task_pb2.CONSENSUS_RULE_QUALIFIED_MAJORITY
    PER_CLASS_THRESHOLD = "per_class_threshold", task_pb2.CONSENSUS_RULE_PER_CLASS_THRESHOLD
    WEIGHTED = "weighted", task_pb2.CONSENSUS_RULE_WEIGHTED
    CERTAINTY_WEIGHTED = "certainty_weighted", task_pb2.CONSENSUS_RULE_CERTAINTY_WEIGHTED
    STAPLE = "staple", task_pb2.CONSENSUS_RULE_STAPLE
    TRIMMED = "trimmed", task_pb2.CONSENSUS_RULE_TRIMMED

    @property
    def encodings(self) -> tuple[Encoding, ...]:
        """The ballots it can read."""
        match self:
            case RuleName.CERTAINTY_WEIGHTED:
                return (Encoding.SCORED,)
            case RuleName.STAPLE | RuleName.TRIMMED:
                return (Encoding.INDEX, Encoding.SCORED)
            case (
                RuleName.MAJORITY
                | RuleName.QUALIFIED_MAJORITY
                | RuleName.PER_CLASS_THRESHOLD
                | RuleName.WEIGHTED
            ):
                return tuple(Encoding)

    @property
    def published_encoding(self) -> Encoding:
        """How its consensus is packed: ONE_HOT where several classes may claim a row, else INDEX."""
        match self:
            case RuleName.PER_CLASS_THRESHOLD:
                return Encoding.ONE_HOT
            case (
                RuleName.MAJORITY
                | RuleName.QUALIFIED_MAJORITY
                | RuleName.WEIGHTED
                | RuleName.CERTAINTY_WEIGHTED
                | RuleName.STAPLE
                | RuleName.TRIMMED
            ):
                return Encoding.INDEX

    @property
    def hides_parties(self) -> bool:
        """Whether it needs counts alone, so that noise on them hides a whole silo."""
        match self:
            case RuleName.MAJORITY | RuleName.QUALIFIED_MAJORITY | RuleName.CERTAINTY_WEIGHTED:
                return True
            case (
                RuleName.PER_CLASS_THRESHOLD
                | RuleName.WEIGHTED
                | RuleName.STAPLE
                | RuleName.TRIMMED
            ):
                return False

    @property
    def most_labels(self) -> int | None:
        """Labels a task may have; None where any number will do. A rule that learns pairs of classes needs a bound."""
        match self:
            case RuleName.STAPLE:
                return 512
            case (
                RuleName.MAJORITY
                | RuleName.QUALIFIED_MAJORITY
                | RuleName.PER_CLASS_THRESHOLD
                | RuleName.WEIGHTED
                | RuleName.CERTAINTY_WEIGHTED
                | RuleName.TRIMMED
            ):
                return None

    @property
    def weighs_silos(self) -> bool:
        """Whether it heeds `credibility`."""
        match self:
            case RuleName.WEIGHTED | RuleName.PER_CLASS_THRESHOLD:
                return True
            case (
                RuleName.MAJORITY
                | RuleName.QUALIFIED_MAJORITY
                | RuleName.CERTAINTY_WEIGHTED
                | RuleName.STAPLE
                | RuleName.TRIMMED
            ):
                return False


class Credibility(WireEnum):
    """Where a silo's weight comes from."""

    EQUAL = "equal", task_pb2.CREDIBILITY_EQUAL
    DATA_SIZE = "data_size", task_pb2.CREDIBILITY_DATA_SIZE
    """The power of two below the number of patients (or rows) it declares."""
    SET = "set", task_pb2.CREDIBILITY_SET
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
        if not self.rule.weighs_silos and self.credibility is not Credibility.EQUAL:
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

    def to_proto(self) -> task_pb2.ConsensusPolicy:
        """As the wire carries it: integers only."""
        return task_pb2.ConsensusPolicy(
            rule=self.rule.to_proto(),
            min_share_permille=self.min_share_permille,
            threshold_permille=self.threshold_permille,
            trim_permille=self.trim_permille,
            credibility=self.credibility.to_proto(),
            weights=self.weights,
        )

    @classmethod
    def from_proto(cls, message: task_pb2.ConsensusPolicy) -> Self:
        """Reads and checks a policy; raises pydantic's ValidationError."""
        return cls.model_validate(
            {
                "rule": RuleName.value_of(message.rule),
                "min_share": message.min_share_permille / 1000,
                "threshold": message.threshold_permille / 1000,
                "trim": message.trim_permille / 1000,
                "credibility": Credibility.value_of(message.credibility),
                "weights": dict(message.weights),
            }
        )
