"""Privacy events: what was done to private data, apart from what it costs (`wire.privacy.accounting`).

Every sensitivity is meant for *replaced* neighbours: the unit of privacy (a patient, a row, or a whole silo)
is exchanged for any other. An event is a plain value that a ledger keeps as JSON, so its cost can be derived
anew at any time.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Free(_Event):
    """Nothing private: an abstention, or further use of something already paid for."""

    kind: Literal["free"] = "free"


class Unprotected(_Event):
    """A release without noise. It has no ε."""

    kind: Literal["unprotected"] = "unprotected"


class Gaussian(_Event):
    """`count` answers, each a vector plus Gaussian noise."""

    kind: Literal["gaussian"] = "gaussian"
    sensitivity: Positive
    """Largest Euclidean distance between the answers on neighbours, in the unit of `scale`."""
    scale: Positive
    """Standard deviation of the noise."""
    count: Count = 1


class Laplace(_Event):
    """`count` answers, each a vector plus Laplace noise."""

    kind: Literal["laplace"] = "laplace"
    sensitivity: Positive
    """Largest L1 distance between the answers on neighbours."""
    scale: Positive
    """Scale b of the noise; its standard deviation is √2 b."""
    count: Count = 1


class RandomizedResponse(_Event):
    """`count` answers, each one of `buckets`: e^epsilon times likelier the true one than any other."""

    kind: Literal["randomized_response"] = "randomized_response"
    buckets: Annotated[int, Field(ge=2)]
    epsilon: Positive
    count: Count = 1


class UnaryResponse(_Event):
    """`count` rows of bits: the label's is one with probability ½, every other with 1/(e^epsilon + 1).

    For two labels the loss is +ε, 0 or −ε with probability (1−q)/2, ½ and q/2; for a label and a row without one
    it is less, since one of the two bits is then not seen.
    """

    kind: Literal["unary_response"] = "unary_response"
    epsilon: Positive
    """Of one row whose label changes."""
    count: Count = 1


class Pure(_Event):
    """`count` answers of which no more is known than that each is ε-differentially private."""

    kind: Literal["pure"] = "pure"
    epsilon: Positive
    count: Count = 1


class SampledGaussian(_Event):
    """`steps` sums over a Poisson sample of the units, each plus Gaussian noise (DP-SGD)."""

    kind: Literal["sampled_gaussian"] = "sampled_gaussian"
    rate: Annotated[float, Field(gt=0, le=1)]
    """Probability with which a unit is in a step's sample."""
    clip: Positive
    """Largest Euclidean norm of one unit's contribution."""
    scale: Positive
    """Standard deviation of the noise."""
    steps: Count


Event = Annotated[
    Free
    | Unprotected
    | Gaussian
    | Laplace
    | RandomizedResponse
    | UnaryResponse
    | Pure
    | SampledGaussian,
    Field(discriminator="kind"),
]
EVENTS: TypeAdapter[tuple[Event, ...]] = TypeAdapter(tuple[Event, ...])
"""Reads and writes several events as JSON."""
