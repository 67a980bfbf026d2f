"""The simulation behind a plan: the mechanisms' own code on made silos; ballots are packed, summed, learned from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from silo_agent.trainer.methods.co_training import Consensus
from silo_agent.trainer.planner.candidates import (
    MOST_ROWS,
    CalibratedCandidate,
    calibrate_candidate,
    candidates,
)
from silo_agent.trainer.planner.plan import Entry, Measured, Plan, Question
from silo_agent.trainer.planner.problem import problem_of_accuracy, right
from silo_agent.trainer.planner.simulated_federation import FRESH, SimulatedFederation
from silo_agent.trainer.privacy.mechanisms.protocol import LabelsWanted
from silo_agent.trainer.privacy.settings import TeacherVotesSettings
from silo_agent.trainer.privacy.silo_without_data import InMemoryFiles
from wire.ballot import ABSTAIN, BallotShape, Encoding, unpack_one_hot, unpack_scored
from wire.privacy.randomness import Bits


@dataclass(frozen=True)
class Effort:
    """How much is simulated."""

    repetitions: int
    """Federations that are made up."""
    rounds: int
    """Rounds of each, at most; the noise is that for all rounds of the task."""
    teachers: int
    """Teachers trained for one mechanism in all federations together; at least one federation gets its."""


USUAL: Final = Effort(repetitions=5, rounds=2, teachers=1500)
QUICK: Final = Effort(repetitions=2, rounds=1, teachers=500)


class ProgressListener(Protocol):
    """Receives the progress of a simulation."""

    def begin(self, doing: str, steps: int) -> None:
        """So many steps are ahead."""

    def step(self) -> None:
        """One of them is done."""


@dataclass(frozen=True)
class TrialResult:
    """Outcome of one mechanism in one simulated federation."""

    answered: int
    """Public rows with a label in the end."""
    labels: float
    """Share of these labels that are true; nan if there are none."""
    home: float
    gain: float


def simulate(
    question: Question, effort: Effort, seed: int, bits: Bits, steps: ProgressListener
) -> Plan:
    """The plan for one budget. `seed` decides what is made up, `bits` are the noise."""
    (plan,) = simulate_budgets(question, (question.epsilon,), effort, seed, bits, steps)
    return plan


def simulate_budgets(
    question: Question,
    budgets: Sequence[float],
    effort: Effort,
    seed: int,
    bits: Bits,
    steps: ProgressListener,
) -> tuple[Plan, ...]:
    """A plan for each ε, all on the same made federations."""
    names = candidates(question)
    steps.begin("making up silos", effort.repetitions + 1)
    rng = np.random.default_rng(seed)
    problem = problem_of_accuracy(
        question.classes,
        question.features,
        question.rows_per_silo,
        question.expert_accuracy,
        rng,
    )
    steps.step()
    rows = min(question.public_rows, MOST_ROWS)
    federations = []
    for each in rng.integers(0, 2**63, effort.repetitions):
        federations.append(
            SimulatedFederation.draw(
                problem, question.silos, question.rows_per_silo, rows, int(each)
            )
        )
        steps.step()
    steps.begin("casting ballots", len(names) * len(budgets))
    plans = []
    for epsilon in budgets:
        asked = replace(question, epsilon=epsilon)
        entries = []
        for candidate in names:
            calibrated = calibrate_candidate(
                candidate, asked, federations[0].silo_round(0, 1, None, InMemoryFiles())
            )
            entries.append(
                _measured(
                    calibrated,
                    _affordable(calibrated, federations, effort),
                    effort.rounds,
                    rng,
                    bits,
                )
                if isinstance(calibrated, CalibratedCandidate)
                else calibrated
            )
            steps.step()
        plans.append(
            Plan(
                question=asked,
                local=Measured.of(
                    [federation.alone for federation in federations], FRESH * len(federations)
                ),
                pooled=Measured.of(
                    [federation.pooled for federation in federations], FRESH * len(federations)
                ),
                entries=tuple(entries),
                notes=_notes(asked, effort),
            )
        )
    return tuple(plans)


def consensus_of(
    ballots: Sequence[bytes], shape: BallotShape, rng: np.random.Generator
) -> Consensus:
    """(rows,) the class with the largest sum of bits, or of certainties; ties are drawn, no vote abstains."""
    sums = np.zeros((shape.rows, shape.classes))
    for ballot in ballots:
        ones = unpack_one_hot(ballot, shape)
        if shape.encoding is Encoding.SCORED:
            sums += ones * unpack_scored(ballot, shape)[1][:, np.newaxis]
        else:
            sums += ones
    best = sums == sums.max(axis=1, keepdims=True)
    labels: npt.NDArray[np.int64] = np.where(best, rng.random(sums.shape), -1.0).argmax(axis=1)
    labels[~sums.any(axis=1)] = ABSTAIN
    return labels


def _affordable(
    calibrated: CalibratedCandidate, federations: Sequence[SimulatedFederation], effort: Effort
) -> Sequence[SimulatedFederation]:
    """Fewer federations where each means training many teachers."""
    settings = calibrated.entry.settings
    if not isinstance(settings, TeacherVotesSettings):
        return federations
    each = settings.teachers * len(federations[0].silos)
    return federations[: max(1, effort.teachers // each)]


def _measured(
    calibrated: CalibratedCandidate,
    federations: Sequence[SimulatedFederation],
    rounds: int,
    rng: np.random.Generator,
    bits: Bits,
) -> Entry:
    trials = [_trial(calibrated, federation, rounds, rng, bits) for federation in federations]
    fresh = FRESH * len(federations)
    home = Measured.of([trial.home for trial in trials], fresh)
    gain = Measured.of([trial.gain for trial in trials])
    labelled = [trial for trial in trials if trial.answered]
    return replace(
        calibrated.entry,
        labels=Measured.of(
            [trial.labels for trial in labelled], sum(trial.answered for trial in labelled)
        )
        if labelled
        else None,
        home=home,
        # Two repetitions may agree by accident: no surer than two independent shares of the fresh rows.
        gain=replace(gain, error=max(gain.error, home.error)),
    )


def _trial(
    calibrated: CalibratedCandidate,
    federation: SimulatedFederation,
    rounds: int,
    rng: np.random.Generator,
    bits: Bits,
) -> TrialResult:
    memories = [InMemoryFiles() for _ in federation.silos]
    consensus = _cast(calibrated, federation, 1, None, memories, rng, bits)
    for round_number in range(2, min(rounds, calibrated.mechanism.paid_rounds) + 1):
        consensus = _cast(calibrated, federation, round_number, consensus, memories, rng, bits)
    answered = consensus != ABSTAIN
    home = federation.at_home(consensus)
    return TrialResult(
        answered=int(answered.sum()),
        labels=right(consensus[answered], federation.truth[answered])
        if answered.any()
        else math.nan,
        home=home,
        gain=home - federation.alone,
    )


def _cast(
    calibrated: CalibratedCandidate,
    federation: SimulatedFederation,
    round_number: int,
    latest: Consensus | None,
    memories: Sequence[InMemoryFiles],
    rng: np.random.Generator,
    bits: Bits,
) -> Consensus:
    """One round: every silo's ballot, and what comes of them."""
    ballots = []
    for silo, memory in enumerate(memories):
        wanted = calibrated.mechanism.labels_wanted is not LabelsWanted.NEVER
        labels = federation.labels_of(silo, round_number, latest) if wanted else None
        seen = federation.silo_round(silo, round_number, labels, memory)
        calibrated.mechanism.offer(seen)
        ballots.append(calibrated.mechanism.vote(seen, bits).packed(calibrated.shape))
    return consensus_of(ballots, calibrated.shape, rng)


def _notes(question: Question, effort: Effort) -> tuple[str, ...]:
    notes = [
        f"Expected on made data: Gaussian classes in {question.features} dimensions, alike at every silo and as "
        f"hard as {question.expert_accuracy:.0%} for a model of one silo; {effort.repetitions} federations "
        "were made up, ± is one standard error. Real data differ. Where silos see different kinds of patients, "
        "there is more to gain together than shown here.",
        "“Labels right” counts the consensus labels that are published; “at home” is a silo's own model trained "
        "on its rows and these labels, judged on fresh rows. The recommendation goes by the latter.",
    ]
    if question.rounds > effort.rounds:
        notes.append(
            f"{effort.rounds} of the {question.rounds} rounds were simulated; the noise is that for all of them."
        )
    if question.public_rows > MOST_ROWS:
        notes.append(
            f"{MOST_ROWS} of the {question.public_rows} public rows were simulated; the noise is that for "
            "all of them."
        )
    return tuple(notes)
