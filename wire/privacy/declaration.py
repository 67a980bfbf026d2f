"""What a silo says of the privacy of its ballot, and what a task may ask of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

from wire.consilium.v1 import privacy_pb2
from wire.enums import WireEnum

MICRO = 10**6
PICO = 10**12
BILLION = 10**9
_MOST_MICROS = 2**53
"""An ε above this, nine milliards, is declared as none: it bounds nothing, and floats count no further."""


class MechanismName(WireEnum):
    """How a ballot was made private."""

    NONE = "none", privacy_pb2.MECHANISM_NONE
    XOR = "xor", privacy_pb2.MECHANISM_XOR
    RANDOMIZED_RESPONSE = "randomized_response", privacy_pb2.MECHANISM_RANDOMIZED_RESPONSE
    TEACHER_VOTES = "teacher_votes", privacy_pb2.MECHANISM_TEACHER_VOTES
    PRIVATE_LABELLER = "private_labeller", privacy_pb2.MECHANISM_PRIVATE_LABELLER

    @property
    def has_epsilon(self) -> bool:
        """Whether it bounds what a ballot gives away."""
        match self:
            case MechanismName.NONE:
                return False
            case (
                MechanismName.XOR
                | MechanismName.RANDOMIZED_RESPONSE
                | MechanismName.TEACHER_VOTES
                | MechanismName.PRIVATE_LABELLER
            ):
                return True

    @property
    def flips_single_bits(self) -> bool:
        """Whether its ballots may have any pattern of ones, which only a one-hot ballot can hold."""
        match self:
            case MechanismName.XOR:
                return True
            case (
                MechanismName.NONE
                | MechanismName.RANDOMIZED_RESPONSE
                | MechanismName.TEACHER_VOTES
                | MechanismName.PRIVATE_LABELLER
            ):
                return False


class Unit(WireEnum):
    """Whose exchange for another must not be noticed."""

    ROW = "row", privacy_pb2.UNIT_ROW
    PATIENT = "patient", privacy_pb2.UNIT_PATIENT


class Declaration(BaseModel):
    """Travels with every ballot; says nothing that depends on the data."""

    # Without noise ε is ∞, which JSON has no number for.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    mechanism: MechanismName = MechanismName.NONE
    epsilon: Annotated[float, Field(gt=0)] = math.inf
    """What the whole task costs a unit of privacy at most; ∞ without noise. Kept to a millionth, upwards."""
    delta: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Kept to 10⁻¹², upwards."""
    unit: Unit = Unit.ROW
    estimate: bool = False
    """True if ε rests on a sensitivity nobody has proved."""
    one_if_voted: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Probability of a one where the silo's model voted for the class; kept to 10⁻⁹."""
    one_if_not: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Probability of a one where it did not."""
    units_log2: Annotated[int, Field(ge=0, le=62)] | None = None
    """Patients (or rows) the silo has, as the power of two below; only where the task weights silos by size."""

    def to_proto(self) -> privacy_pb2.PrivacyDeclaration:
        """As the wire carries it: integers only."""
        bounded = self.epsilon * MICRO <= _MOST_MICROS
        return privacy_pb2.PrivacyDeclaration(
            mechanism=self.mechanism.to_proto(),
            epsilon_micros=math.ceil(round(self.epsilon * MICRO, 3)) if bounded else 0,
            delta_picos=math.ceil(round(self.delta * PICO, 3)),
            unit=self.unit.to_proto(),
            estimate=self.estimate,
            one_if_voted_ppb=round(self.one_if_voted * BILLION),
            one_if_not_ppb=round(self.one_if_not * BILLION),
            units_log2=self.units_log2,
        )

    @classmethod
    def from_proto(cls, message: privacy_pb2.PrivacyDeclaration) -> Self:
        """Reads and checks a declaration; raises pydantic's ValidationError."""
        micros = message.epsilon_micros
        return cls.model_validate(
            {
                "mechanism": MechanismName.value_of(message.mechanism),
                "epsilon": micros / MICRO if 0 < micros <= _MOST_MICROS else math.inf,
                "delta": message.delta_picos / PICO,
                "unit": Unit.value_of(message.unit),
                "estimate": message.estimate,
                "one_if_voted": message.one_if_voted_ppb / BILLION,
                "one_if_not": message.one_if_not_ppb / BILLION,
                "units_log2": message.units_log2 if message.HasField("units_log2") else None,
            }
        )


class PrivacyDemand(BaseModel):
    """The `privacy:` section of task.yaml: the least protection a ballot must have to be accepted.

    It can keep a silo out; it can never make one add less noise than its own silo.yaml says.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    mechanisms: tuple[MechanismName, ...] = ()
    """Mechanisms that are accepted; empty means all."""
    max_epsilon: Annotated[float, Field(ge=1 / MICRO, le=10**6, allow_inf_nan=False)] | None = None
    """ε at most that a silo may declare for the whole task; kept to a millionth."""
    max_delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """δ at most where `max_epsilon` is set; kept to 10⁻¹²."""
    accept_estimates: bool = False
    """Whether an ε that is an estimate counts as one."""
    party_gamma: Annotated[float, Field(ge=1 / MICRO, le=1000, allow_inf_nan=False)] | None = None
    """The coordinator adds Laplace(1/γ) to every count before a label is chosen; kept to a millionth."""

    def unmet_by(self, declared: Declaration) -> tuple[str, ...]:
        """What a declaration lacks, one clause each; empty if it is good enough."""
        lacks = []
        if self.mechanisms and declared.mechanism not in self.mechanisms:
            lacks.append(f"it accepts {_listed(self.mechanisms)}, not {declared.mechanism}")
        if self.max_epsilon is not None:
            if declared.estimate and not self.accept_estimates:
                lacks.append("it accepts no ε that is only an estimate")
            if math.isinf(declared.epsilon):
                lacks.append(f"it allows ε ≤ {self.max_epsilon:g} and the ballot has no noise")
            elif round(declared.epsilon * MICRO) > round(self.max_epsilon * MICRO):
                lacks.append(f"it allows ε ≤ {self.max_epsilon:g}, not {declared.epsilon:g}")
            if round(declared.delta * PICO) > round(self.max_delta * PICO):
                lacks.append(f"it allows δ ≤ {self.max_delta:g}, not {declared.delta:g}")
        return tuple(lacks)

    def to_proto(self) -> privacy_pb2.PrivacyDemand:
        """As the wire carries it."""
        return privacy_pb2.PrivacyDemand(
            mechanisms=[name.to_proto() for name in self.mechanisms],
            max_epsilon_micros=0 if self.max_epsilon is None else round(self.max_epsilon * MICRO),
            max_delta_picos=round(self.max_delta * PICO),
            accept_estimates=self.accept_estimates,
            party_gamma_micros=0 if self.party_gamma is None else round(self.party_gamma * MICRO),
        )

    @classmethod
    def from_proto(cls, message: privacy_pb2.PrivacyDemand) -> Self:
        """Reads and checks a demand; raises pydantic's ValidationError."""
        epsilon, gamma = message.max_epsilon_micros, message.party_gamma_micros
        return cls.model_validate(
            {
                "mechanisms": tuple(MechanismName.value_of(value) for value in message.mechanisms),
                "max_epsilon": epsilon / MICRO if epsilon else None,
                "max_delta": message.max_delta_picos / PICO,
                "accept_estimates": message.accept_estimates,
                "party_gamma": gamma / MICRO if gamma else None,
            }
        )


def _listed(names: Sequence[str]) -> str:
    return " or ".join(names)
