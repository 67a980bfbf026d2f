"""A release: one thing that left the private side, or is assumed to have, as the ledger keeps it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, model_validator

from silo_agent.trainer.privacy.mechanisms.protocol import Sensitivity
from wire.privacy.declaration import MechanismName, Unit
from wire.privacy.events import EVENTS, Event, Free, Pure, Unprotected
from wire.runtime.chain import Head

Count = Annotated[int, Field(ge=0)]


class Kind(StrEnum):
    """What an entry of the ledger is."""

    BALLOT = "ballot"
    """Made from private data: its events paid for it, or a model it was made from had been paid for."""
    ABSTENTION = "abstention"
    """A ballot that says nothing on any row."""
    REPETITION = "repetition"
    """A ballot of the same task that was paid for, once more."""
    SAME_PATIENTS = "same_patients"
    """A person's word that a data set has patients of another one: both are charged together from here on."""
    WRITE_OFF = "write_off"
    """What a person says was spent and is no longer on the books."""


def _as_json(parameters: Any) -> Any:
    """As it is read back: lists for tuples, Python's numbers for numpy's; no infinities."""
    return json.loads(json.dumps(parameters, allow_nan=False, default=lambda value: value.item()))


class Release(BaseModel):
    """One entry. It says what happened; what that costs is always derived."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    dataset: str
    """The data set it is charged to, as silo.yaml calls it."""
    task: str = ""
    task_digest: str = ""
    round: Count = 0
    ballot_digest: str = ""
    mechanism: MechanismName | None = None
    """None for a write-off."""
    events: tuple[Event, ...] = ()
    plan: tuple[Event, ...] = ()
    """All that the task was going to release when this was made, as far as its budget pays for it."""
    made_from: tuple[str, ...] = ()
    """Names of the private models at home that it was made from and that are paid for once."""
    pays_for: tuple[str, ...] = ()
    """Those of them that the events pay for; the others had been paid for before."""
    parameters: Annotated[dict[str, JsonValue], BeforeValidator(_as_json)] = Field(
        default_factory=dict
    )
    """Noise level and the like; `worst_case_epsilon` beside an estimate, where it is known."""
    sensitivity: Sensitivity | None = None
    estimate: bool = False
    """True if the events rest on something nobody has proved."""
    unit: Unit
    """Whose exchange for another the events are counted for."""
    units: Count | None = None
    """How many there are of them."""
    delta: Annotated[float, Field(ge=0, lt=1)]
    """δ in force at the time. Costs are derived at the δ in force when they are asked for."""
    reason: str = ""
    """Why the silo abstained, or a person's note."""
    by: str = ""
    """Who wrote it off, or said that the patients are the same."""
    same_as: str = ""
    """The other data set of the same patients."""
    patients_kept: Count = 0
    """Hashes on record for the data set's patients when this was booked; 0 if none were kept."""
    ballots: Count = 1
    """Ballots that left with this entry; any number for a write-off."""
    lost: Head | None = None
    """For a write-off: where the ledger had ended that is given up."""
    at: str = ""
    """UTC, ISO 8601. The ledger's own clock sets it."""

    @property
    def costs(self) -> bool:
        """True if anything has to be paid for."""
        return costly(self.events)

    @property
    def unprotected(self) -> bool:
        """True if one of the events is a release without noise."""
        return any(isinstance(event, Unprotected) for event in self.events)

    @property
    def worst_case_epsilon(self) -> float | None:
        """What an estimate would cost were the worst assumed, if the mechanism said so."""
        value = self.parameters.get("worst_case_epsilon")
        return float(value) if isinstance(value, int | float) else None

    @model_validator(mode="before")
    @classmethod
    def _of_one_model(cls, values: Any) -> Any:
        """Entries of an earlier version name one model as `basis`; if they cost something, that was it."""
        if not isinstance(values, dict) or "basis" not in values:
            return values
        now = {key: value for key, value in values.items() if key != "basis"}
        if basis := values["basis"]:
            paid = costly(EVENTS.validate_python(values.get("events", ())))
            now |= {"made_from": (basis,), "pays_for": (basis,) if paid else ()}
        return now

    @model_validator(mode="after")
    def _require_estimate_mark(self) -> Self:
        if self.sensitivity is not None and self.sensitivity.estimate and not self.estimate:
            raise ValueError(f"a sensitivity that is {self.sensitivity} makes it an estimate")
        return self

    @model_validator(mode="after")
    def _require_consistent_costs(self) -> Self:
        if self.kind in (Kind.ABSTENTION, Kind.REPETITION) and self.costs:
            raise ValueError(f"the events of {self.kind} must be free")
        if not set(self.pays_for) <= set(self.made_from) or (self.pays_for and not self.costs):
            raise ValueError("events pay for models that the release was made from")
        return self

    @model_validator(mode="after")
    def _require_origin(self) -> Self:
        match self.kind:
            case Kind.WRITE_OFF:
                sound = bool(self.by) and self.estimate
                fault = "a write-off is a person's estimate"
            case Kind.SAME_PATIENTS:
                sound = all((self.by, self.reason, self.same_as)) and not (
                    self.ballots or self.costs
                )
                fault = "that patients are the same is a person's word, and costs nothing"
            case Kind.BALLOT | Kind.ABSTENTION | Kind.REPETITION:
                named = all((self.task_digest, self.ballot_digest, self.round))
                sound = named and self.ballots == 1
                fault = "a ballot belongs to a round of a task and has a digest"
        if not sound:
            raise ValueError(fault)
        return self


def costly(events: Iterable[Event]) -> bool:
    """True if one of the events is not free."""
    return any(not isinstance(event, Free) for event in events)


def written_off(epsilon: float) -> tuple[Event, ...]:
    """The event a person's assumed ε is charged as: 0 is nothing, ∞ a release without noise.

    In between it is charged as pure ε, the worst of all that are ε-private at δ = 0. What was lost may have
    been ε-private at some δ only; then that δ is not on the books, one reason why it is an estimate.
    """
    if math.isinf(epsilon):
        return (Unprotected(),)
    return (Pure(epsilon=epsilon),) if epsilon > 0 else ()
