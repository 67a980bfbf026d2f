"""A plan: what was asked, what the simulation found for each mechanism, and what follows from it. Pure values.

How the recommendation is made: of the mechanisms that keep the budget by proof (not `none`, no estimates), the
one whose labels make the silos' own models best, if they become better than they are alone by more than two
standard errors. If none does, the advice is not to federate with this budget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

import numpy as np

from silo_agent.trainer.privacy.certainty.worth import CertaintyWorth
from silo_agent.trainer.privacy.settings import CertaintySettings, MechanismSettings
from wire.privacy.declaration import MechanismName

SURE: Final = 2.0
"""Standard errors by which a difference must exceed nothing before it is called one."""
_HARDLY: Final = 0.1
"""Share of what a silo knows beyond guessing below which labels are hardly better than guessing."""


@dataclass(frozen=True)
class Question:
    """What the person planning a task knows of it."""

    epsilon: float
    """Budget of a silo for the whole task."""
    delta: float
    rounds: int
    public_rows: int
    classes: int
    silos: int
    rows_per_silo: int
    """Patients of a silo; each has one row."""
    expert_accuracy: float = 0.8
    """How often a model is right that learned from one silo's rows alone."""
    features: int = 30
    """Independent features of a row: the more, the more there is to learn together."""
    changed_rows: int | None = None
    """Labels that one patient can change, as xor assumes; None for all of them, which needs no assumption."""
    certainty_epsilon: float = CertaintySettings().epsilon
    """What the certainties of a FEDAUX task may cost."""

    @property
    def chance(self) -> float:
        """How often a guess is right."""
        return 1 / self.classes

    @property
    def certainty(self) -> CertaintyWorth:
        """What certainties are worth to a silo, were the task FEDAUX's and its extractor's features these."""
        noise = CertaintySettings(
            epsilon=self.certainty_epsilon, delta=self.delta or CertaintySettings().delta
        )
        return CertaintyWorth(noise, self.rows_per_silo, self.features)


@dataclass(frozen=True)
class Measured:
    """A share found by simulation, with its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float], rows: int | None = None) -> Self:
        """From independent repetitions; with `rows` given, no surer than that many rows allow."""
        found = np.asarray(values, dtype=float)
        mean = float(found.mean())
        error = float(found.std(ddof=1) / math.sqrt(len(found))) if len(found) > 1 else 0.0
        if rows:
            error = max(error, math.sqrt(max(mean * (1 - mean), 1 / rows) / rows))
        return cls(mean, error)

    def __str__(self) -> str:
        return f"{self.mean:.1%} ± {self.error:.1%}"


@dataclass(frozen=True)
class Entry:
    """One mechanism in a plan."""

    name: str
    settings: MechanismSettings
    """As silo.yaml would have it."""
    noise: str = ""
    """How much noise, in words: a clause."""
    level: str = ""
    """The same in a few symbols."""
    parameters: Mapping[str, object] = field(default_factory=dict)
    """What the ledger would keep."""
    rows: int = 0
    """Rows of U that a silo answers in a ballot."""
    epsilon: float = math.inf
    """What the whole task costs a patient, by the accountant."""
    estimate: bool = False
    """True if ε rests on an assumption nobody has proved."""
    labels: Measured | None = None
    """Share of the published labels that are true; None if nothing was published."""
    home: Measured | None = None
    """How often a silo's own model is right after training with the labels."""
    gain: Measured | None = None
    """`home` less what the same silos reach alone."""
    unfit: str = ""
    """Why it cannot serve at all; then nothing else is known."""

    @property
    def mechanism(self) -> MechanismName:
        """Which mechanism it is."""
        return self.settings.name

    @property
    def private(self) -> bool:
        """True if it keeps the budget by proof."""
        return not self.unfit and not self.estimate and self.mechanism is not MechanismName.NONE

    @property
    def useful(self) -> bool:
        """True if the silos' models become better by more than chance explains."""
        return self.gain is not None and self.gain.mean > SURE * self.gain.error

    @property
    def lines(self) -> dict[str, object]:
        """The `mechanism:` lines of silo.yaml."""
        return self.settings.model_dump(mode="json", exclude_defaults=True) | {
            "name": str(self.mechanism)
        }


@dataclass(frozen=True)
class Plan:
    """What a budget buys."""

    question: Question
    local: Measured
    """How often a silo's model is right if nobody federates."""
    pooled: Measured
    """The same, had all silos put their rows together: about the most there is to gain."""
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()
    """What was simulated less than fully."""

    @property
    def recommended(self) -> Entry | None:
        """By the rule above."""
        useful = [entry for entry in self.entries if entry.private and entry.useful]
        return max(useful, key=_home, default=None)

    @property
    def advice(self) -> str:
        """What to do, in plain words."""
        best, asked = self.recommended, self.question
        if best is not None:
            return (
                f"Take {best.name}: at ε = {asked.epsilon:g} a silo's own model would be right about "
                f"{_home(best):.0%} of the time, alone {self.local.mean:.0%}."
            )
        if self.pooled.mean - self.local.mean <= SURE * math.hypot(
            self.pooled.error, self.local.error
        ):
            why = (
                f"even all rows pooled would be right {self.pooled.mean:.1%} of the time, a silo alone "
                f"{self.local.mean:.1%}, so there is little to gain by any means."
            )
        else:
            why = (
                f"no private mechanism makes a silo's own model better than it is alone "
                f"({self.local.mean:.0%}). A larger ε, more patients per silo, fewer public rows or fewer "
                "rounds would help; --curve shows what a larger ε buys."
            )
        return f"Do not federate with this budget: {why}"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Where the noise drowns the signal, or a number is only an estimate."""
        return tuple(
            warning for entry in self.entries for warning in _warnings_of(entry, self) if warning
        )

    def as_json(self) -> dict[str, Any]:
        """Everything, for scripts; an infinite ε is null."""
        best = self.recommended
        return {
            "question": asdict(self.question),
            "chance": self.question.chance,
            "local": asdict(self.local),
            "pooled": asdict(self.pooled),
            "mechanisms": [_entry_json(entry) for entry in self.entries],
            "recommended": best.name if best else None,
            "advice": self.advice,
            "warnings": list(self.warnings),
            "certainty": self.question.certainty.as_json(),
            "notes": list(self.notes),
        }


def _home(entry: Entry) -> float:
    return entry.home.mean if entry.home else 0.0


def _warnings_of(entry: Entry, plan: Plan) -> tuple[str, ...]:
    if entry.unfit or entry.mechanism is MechanismName.NONE:
        return ()
    found = []
    if entry.estimate:
        found.append(
            f"The ε of {entry.name} is an estimate, not a guarantee: nobody has proved that a patient changes "
            f"at most {plan.question.changed_rows} labels."
        )
    return (*found, _drowned(entry, plan))


def _drowned(entry: Entry, plan: Plan) -> str:
    chance = plan.question.chance
    if entry.labels is None:
        return f"With this budget {entry.name} answers no row at all: {entry.noise}."
    beyond = entry.labels.mean - chance
    if beyond <= SURE * entry.labels.error:
        verdict = "no better than guessing"
    elif beyond <= _HARDLY * (plan.local.mean - chance):
        verdict = "hardly better than guessing"
    else:
        return ""
    # By what it does at home: a few labels that happen to be right help nobody.
    best = max((other for other in plan.entries if other.private), key=_home, default=entry)
    better = ""
    if best.labels is not None and best.labels.mean - chance > 2 * max(0.0, beyond):
        better = f" {best.name} would reach about {best.labels.mean:.0%}."
    return (
        f"With this budget {entry.name} is {verdict}: {entry.noise}, and the labels are right "
        f"{entry.labels.mean:.1%} of the time (chance: {chance:.1%}).{better}"
    )


def _entry_json(entry: Entry) -> dict[str, Any]:
    finite = math.isfinite(entry.epsilon)
    return {
        "name": entry.name,
        "mechanism": entry.lines,
        "unfit": entry.unfit or None,
        "noise": entry.noise,
        "noise_level": entry.level,
        "parameters": dict(entry.parameters),
        "rows_answered": entry.rows,
        "epsilon": entry.epsilon if finite and not entry.unfit else None,
        "estimate": entry.estimate,
        "labels_right": asdict(entry.labels) if entry.labels else None,
        "home_right": asdict(entry.home) if entry.home else None,
        "gain": asdict(entry.gain) if entry.gain else None,
    }
