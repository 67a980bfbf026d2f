"""The `privacy:` section of silo.yaml: which mechanism, which budgets. The hospital's word alone."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from silo_agent.trainer.privacy.mechanisms.protocol import Sensitivity
from wire.privacy.declaration import Declaration, MechanismName

Epsilon = Annotated[float, Field(gt=0, le=10**6, allow_inf_nan=False)]
Probability = Annotated[float, Field(gt=0, lt=1)]


DatasetName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NoneSettings(_Frozen):
    """No noise: ballots are what the learner says."""

    name: Literal[MechanismName.NONE] = MechanismName.NONE


class SensitivitySettings(_Frozen):
    """How many labels of a ballot one unit of privacy can change."""

    source: Literal[Sensitivity.WORST_CASE, Sensitivity.STABILITY_BOUND, Sensitivity.EMPIRICAL] = (
        Sensitivity.WORST_CASE
    )
    stability: Probability | None = None
    """`stability_bound` only: probability, on average, that a label changes with one unit of n."""
    confidence: Probability = 0.95
    """`stability_bound` only: 1 − δ of the papers' bound."""
    samples: Annotated[int, Field(ge=1)] = 100
    """`empirical` only: neighbours tried."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.source is Sensitivity.STABILITY_BOUND) != (self.stability is not None):
            raise ValueError("`stability` belongs to source: stability_bound, and is needed there")
        return self


def _source(value: Any) -> Any:
    return {"source": value} if isinstance(value, str) else value


class XorSettings(_Frozen):
    """The papers' XOR mechanism."""

    name: Literal[MechanismName.XOR] = MechanismName.XOR
    sensitivity: Annotated[SensitivitySettings, BeforeValidator(_source)] = SensitivitySettings()
    flip: Annotated[float, Field(gt=0, lt=0.5)] | None = None
    """Probability that a bit is flipped; left out, the budget decides."""
    theta: tuple[tuple[float, ...], ...] | None = None
    """General Θ (classes × classes, symmetric) instead of `flip`; at most 16 classes."""
    paid_rounds: Annotated[int, Field(ge=1)] | None = None
    """Rounds in which a new ballot is bought; left out, all of the task's."""

    @model_validator(mode="after")
    def _one_noise(self) -> Self:
        if self.flip is not None and self.theta is not None:
            raise ValueError("give `flip` or `theta`, not both")
        return self


class RandomizedResponseSettings(_Frozen):
    """k-ary randomised response, or unary where there are many classes."""

    name: Literal[MechanismName.RANDOMIZED_RESPONSE] = MechanismName.RANDOMIZED_RESPONSE
    row_epsilon: Epsilon | None = None
    """ε of a single label; left out, the budget decides."""
    paid_rounds: Annotated[int, Field(ge=1)] | None = None


class TeacherVotesSettings(_Frozen):
    """Noisy vote of teachers trained on disjoint shards of the patients."""

    name: Literal[MechanismName.TEACHER_VOTES] = MechanismName.TEACHER_VOTES
    teachers: Annotated[int, Field(ge=2)] = 25
    noise: Literal["gaussian", "laplace", "confident"] = "gaussian"
    rows: Annotated[int, Field(ge=1)] | None = None
    """Rows of U answered per paid round; left out, as many as the budget pays for at a useful noise."""
    scale: Annotated[float, Field(gt=0)] | None = None
    """Noise in votes; left out, the budget decides."""
    paid_rounds: Annotated[int, Field(ge=1)] = 1


class PrivateLabellerSettings(_Frozen):
    """A labeller that is itself trained with noise; all its labels are then free."""

    name: Literal[MechanismName.PRIVATE_LABELLER] = MechanismName.PRIVATE_LABELLER
    head: Literal["logistic", "ebm", "sgd"] = "logistic"
    steps: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Noisy steps; left out, what suits the head."""
    components: Annotated[int, Field(ge=1, le=4096)] = 64
    """`logistic` only: principal components of U kept as features, at most."""


class CertaintySettings(_Frozen):
    """What the certainties of a FEDAUX task may cost: trained once, with noise, part of the task's budget."""

    epsilon: Epsilon = 0.1
    delta: Probability = 1e-5
    """The noise is chosen for (epsilon, delta); the ledger adds it up with everything else at its own δ."""


MechanismSettings = Annotated[
    NoneSettings
    | XorSettings
    | RandomizedResponseSettings
    | TeacherVotesSettings
    | PrivateLabellerSettings,
    Field(discriminator="name"),
]


def has_own_noise(settings: MechanismSettings) -> bool:
    """True if silo.yaml says how much noise the mechanism adds, so that no budget has to."""
    match settings:
        case XorSettings(flip=flip, theta=theta):
            return flip is not None or theta is not None
        case RandomizedResponseSettings(row_epsilon=row):
            return row is not None
        case TeacherVotesSettings(scale=scale):
            return scale is not None
        case NoneSettings() | PrivateLabellerSettings():
            return False


def _named(value: Any) -> Any:
    given = {"name": value} if isinstance(value, str) else value
    if isinstance(given, dict) and given.get("name") not in set(MechanismName):
        raise ValueError(f"there is no {given.get('name')!r}; choose {', '.join(MechanismName)}")
    return given


class PrivacySettings(_Frozen):
    """What a hospital allows to leave, and what it may cost its patients."""

    mechanism: Annotated[MechanismSettings, BeforeValidator(_named)] = NoneSettings()
    """A mechanism's name, or `{name: …, …}` with what it can be told."""
    epsilon: Epsilon | None = None
    """Budget of one task, over all its rounds."""
    delta: Probability = 1e-5
    certainty: CertaintySettings = CertaintySettings()
    """For tasks that weight votes by how much a row looks like the silo's own."""
    lifetime_epsilon: Epsilon | None = None
    """Budget of the data set over all tasks, at the same δ."""
    dataset: DatasetName = "private"
    """Under this name the ledger adds up what was spent; change it only when the patients are others."""
    same_patients_as: dict[DatasetName, Reason] = Field(default_factory=dict)
    """Other names under which some of these patients were charged, each with the reason; they share one budget."""

    @model_validator(mode="after")
    def _payable(self) -> Self:
        budget = self.epsilon is not None or self.lifetime_epsilon is not None
        if isinstance(self.mechanism, NoneSettings) and budget:
            raise ValueError(
                "mechanism none has no ε and keeps no budget; choose another mechanism"
            )
        if (
            self.epsilon is not None
            and self.lifetime_epsilon is not None
            and self.epsilon > self.lifetime_epsilon
        ):
            raise ValueError("epsilon, the budget of one task, is larger than lifetime_epsilon")
        return self

    @model_validator(mode="after")
    def _other_names(self) -> Self:
        if self.dataset in self.same_patients_as:
            raise ValueError("same_patients_as names the data set itself; name the other one")
        return self

    @property
    def protects(self) -> bool:
        """True unless ballots leave as they are."""
        return not isinstance(self.mechanism, NoneSettings)

    @property
    def estimated(self) -> bool:
        """True if ε rests on a sensitivity nobody has proved."""
        mechanism = self.mechanism
        return isinstance(mechanism, XorSettings) and mechanism.sensitivity.source.estimate

    @property
    def promise(self) -> Declaration:
        """What holds for every task whatever it asks: the ledger stops where the budget ends."""
        return Declaration(
            mechanism=self.mechanism.name,
            epsilon=math.inf if self.epsilon is None else self.epsilon,
            delta=0.0 if self.epsilon is None else self.delta,
            estimate=self.estimated,
        )
