"""The hospital's policy: limits no task may break, and whether a person must accept each task."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from wire.privacy.declaration import Declaration, MechanismName
from wire.runtime.terminal import size
from wire.task.definition import TaskDefinition, label_text
from wire.task.methods import Method

NO_NOISE = Declaration()
DEFAULT_PUBLIC_BYTES = 1 << 30
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Approve(StrEnum):
    """Who accepts a task that keeps every limit."""

    MANUAL = "manual"
    """A person, each definition anew."""
    WITHIN_LIMITS = "within_limits"
    """The policy itself."""


class Policy(BaseModel):
    """The `policy:` section of silo.yaml. A limit that is not set allows everything."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    approve: Approve = Approve.MANUAL
    max_rounds: Annotated[int, Field(ge=1)] | None = None
    """Ballots at most that one task may ask for."""
    max_epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Privacy loss ε at most over a task's whole run, proved: neither ∞ nor an estimate."""
    min_silos: Annotated[int, Field(ge=1)] | None = None
    """Smallest `rounds.quorum`: with fewer ballots no consensus is formed."""
    public_sets: Annotated[tuple[Digest, ...], Field(min_length=1)] | None = None
    """Digests of the public sets that may be voted on."""
    methods: Annotated[tuple[Method, ...], Field(min_length=1)] | None = None
    labels: Annotated[tuple[str, ...], Field(min_length=2)] | None = None
    """The only label space that may be voted on, in any order."""
    max_public_bytes: Annotated[int, Field(ge=1)] = DEFAULT_PUBLIC_BYTES
    """Public set and extractor of a task together, at most; they are fetched once it is approved."""

    @field_validator("labels", mode="before")
    @classmethod
    def _labels_as_written(cls, labels: Any) -> Any:
        return [label_text(label) for label in labels] if isinstance(labels, list) else labels

    @model_validator(mode="after")
    def _limited(self) -> Self:
        limits = self.model_dump(exclude={"approve", "max_public_bytes"}, exclude_none=True)
        if self.approve is Approve.WITHIN_LIMITS and not limits:
            raise ValueError(
                "approve: within_limits needs at least one limit, for example max_rounds; "
                "without any it would accept every task"
            )
        return self

    def broken_by(
        self, definition: TaskDefinition, promise: Declaration = NO_NOISE
    ) -> tuple[str, ...]:
        """The limits a task breaks, one clause each that begins with the limit's name.

        `promise` is what this hospital's own `privacy` section holds any task to.
        """
        demanded = (
            f"privacy: the task asks for more, {lack}"
            for lack in definition.privacy.unmet_by(promise)
        )
        return (
            *self._broken_numbers(definition, promise),
            *self._broken_names(definition),
            *demanded,
        )

    def _broken_numbers(self, definition: TaskDefinition, promise: Declaration) -> Iterator[str]:
        rounds = definition.rounds
        if self.max_rounds is not None and rounds.max_rounds > self.max_rounds:
            yield f"max_rounds is {self.max_rounds}, the task has {rounds.max_rounds}"
        if self.max_epsilon is not None and (lack := _too_much(promise, self.max_epsilon)):
            yield f"max_epsilon is {self.max_epsilon:g}, {lack}"
        if self.min_silos is not None and rounds.quorum < self.min_silos:
            yield f"min_silos is {self.min_silos}, the task's quorum is {rounds.quorum}"

    def _broken_names(self, definition: TaskDefinition) -> Iterator[str]:
        if self.public_sets is not None and definition.public_set not in self.public_sets:
            yield f"public_sets does not name {definition.public_set}"
        if self.methods is not None and definition.method not in self.methods:
            yield f"methods does not name {definition.method}"
        if self.labels is not None and sorted(definition.labels) != sorted(self.labels):
            yield "labels names another label space"

    def in_words(self) -> tuple[str, ...]:
        """What the policy says, one sentence each; the first says who accepts a task."""
        by_itself = self.approve is Approve.WITHIN_LIMITS
        words = [
            "every task within the limits is accepted without asking"
            if by_itself
            else "a person accepts each task: `consilium agent approve TASK`"
        ]
        if self.max_rounds is not None:
            words.append(f"a task has at most {self.max_rounds} rounds")
        if self.max_epsilon is not None:
            words.append(f"a task spends at most ε = {self.max_epsilon:g}, proved")
        if self.min_silos is not None:
            words.append(f"no consensus is formed of fewer than {self.min_silos} ballots")
        if self.public_sets is not None:
            words.append(f"the public set is {' or '.join(self.public_sets)}")
        if self.methods is not None:
            words.append(f"the method is {' or '.join(self.methods)}")
        if self.labels is not None:
            words.append(f"the labels are {', '.join(self.labels)}")
        if len(words) == 1:
            words.append("no limits are set")
        if self.max_public_bytes != DEFAULT_PUBLIC_BYTES:
            words.append(f"the public files of a task have at most {size(self.max_public_bytes)}")
        return tuple(words)


def _too_much(promise: Declaration, limit: float) -> str:
    """Why ballots as silo.yaml has them made may cost more than `limit`; empty if they cannot."""
    if promise.mechanism is MechanismName.NONE:
        return "ballots have no noise, so ε = ∞"
    if math.isinf(promise.epsilon):
        return "`privacy` sets no budget (epsilon) for a task"
    if promise.estimate:
        return f"the ε of {promise.mechanism} is an estimate, not a guarantee"
    return f"`privacy` allows a task ε = {promise.epsilon:g}" if promise.epsilon > limit else ""


@dataclass(frozen=True)
class ApprovalCriteria:
    """What a task is judged by: the policy, the privacy promise, and the settings that keep the promise."""

    policy: Policy
    settings: str
    """Digest of everything in silo.yaml that decides what leaves; an approval holds for this digest only."""
    promise: Declaration = NO_NOISE


def in_words(promise: Declaration) -> str:
    """What protects this silo's ballots, by its own silo.yaml."""
    if promise.mechanism is MechanismName.NONE:
        return "none: ballots are hard labels without noise, ε = ∞"
    if math.isinf(promise.epsilon):
        return f"{promise.mechanism} without a budget; see `consilium agent ledger`"
    proved = "an estimate, not a guarantee" if promise.estimate else "then it abstains"
    return (
        f"{promise.mechanism}, at most ε = {promise.epsilon:g} at δ = {promise.delta:g}, {proved}"
    )
