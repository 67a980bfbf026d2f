"""What the demo found, as values: the terminal's table, the JSON and the report all read this."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean
from typing import Any

from experiments.demo.federation import FederationRun
from experiments.demo.hospitals import HOSPITALS, Cohorts, Hospital
from experiments.demo.scores import Scores, agreement
from silo_agent.agent.audit.entries import Direction

PAPER_WEIGHTS = 669_706
"""The FedCT paper's MLP, 784-512-512-10: what FedAvg would exchange there."""
WEIGHT_BYTES = 4
# Units in the hidden layer of the `mlp` learner.
_HIDDEN = 100


@dataclass(frozen=True)
class HospitalOutcome:
    """One hospital: how good its model is and what moved for it; sizes in bytes of payload."""

    hospital: Hospital
    patients: int
    scores: Scores
    bytes_up: int
    bytes_down: int
    file_bytes: int
    """Length of the private file, which stayed where it was."""
    isolation: str


@dataclass(frozen=True)
class RoundOutcome:
    """One round: churn and accuracy are shares of the public rows."""

    round_number: int
    ballots: int
    churn: float
    accuracy: float
    """Against the true labels, which nobody in the federation has."""
    seconds: float
    closed_by: str


@dataclass(frozen=True)
class Outcome:
    """The whole demo."""

    seed: int
    max_rounds: int
    seconds: float
    """From the empty folder to five exported models."""
    hospitals: tuple[HospitalOutcome, ...]
    rounds: tuple[RoundOutcome, ...]
    reason: str
    public_rows: int
    test_rows: int
    ballot_bytes: int
    features: int
    task_digest: str
    public_set_digest: str

    @property
    def mean(self) -> Scores:
        """Mean over the hospitals."""
        scores = [one.scores for one in self.hospitals]
        return Scores(
            alone=mean(one.alone for one in scores),
            consilium=mean(one.consilium for one in scores),
            pooled=mean(one.pooled for one in scores),
        )

    @property
    def command(self) -> str:
        """What reproduces it."""
        return f"consilium demo --seed {self.seed} --rounds {self.max_rounds}"

    @property
    def network_weights(self) -> int:
        """Weights and biases of the one neural network among the learners here."""
        return (self.features + 1) * _HIDDEN + _HIDDEN + 1

    def as_json(self) -> dict[str, Any]:
        """For scripts: plain numbers, sizes in bytes, shares from 0 to 1."""
        return {
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "rounds": len(self.rounds),
            "ballot_bytes": self.ballot_bytes,
            "hospitals": [
                {
                    "name": one.hospital.name,
                    "learner": one.hospital.learner,
                    **_scores(one.scores),
                    "bytes_up": one.bytes_up,
                    "bytes_down": one.bytes_down,
                    "trainer_isolation": one.isolation,
                }
                for one in self.hospitals
            ],
            "mean": _scores(self.mean),
            "consensus": [
                {
                    "round": one.round_number,
                    "ballots": one.ballots,
                    "churn": one.churn,
                    "accuracy": one.accuracy,
                    "seconds": one.seconds,
                }
                for one in self.rounds
            ],
            "command": self.command,
        }


def _scores(scores: Scores) -> dict[str, float]:
    return {
        "alone": scores.alone,
        "consilium": scores.consilium,
        "pooled": scores.pooled,
        "gain": scores.gain,
    }


def make_outcome(
    federation_run: FederationRun,
    cohorts: Cohorts,
    scores: dict[str, Scores],
    *,
    seed: int,
    seconds: float,
) -> Outcome:
    """Puts together what the federation left and how good the models are."""
    definition = federation_run.definition
    return Outcome(
        seed=seed,
        max_rounds=definition.rounds.max_rounds,
        seconds=seconds,
        hospitals=tuple(
            HospitalOutcome(
                hospital=one,
                patients=len(cohorts.private[one.name]),
                scores=scores[one.name],
                bytes_up=federation_run.bytes_moved(one.name, Direction.OUT),
                bytes_down=federation_run.bytes_moved(one.name, Direction.IN),
                file_bytes=(federation_run.homes[one.name].root / "patients.csv").stat().st_size,
                isolation=federation_run.isolation[one.name],
            )
            for one in HOSPITALS
        ),
        rounds=tuple(
            RoundOutcome(
                round_number=one.round_number,
                ballots=one.ballots,
                churn=one.churn,
                accuracy=agreement(one.labels, cohorts.public_labels),
                seconds=one.seconds,
                closed_by=one.closed_by,
            )
            for one in federation_run.rounds
        ),
        reason=federation_run.reason,
        public_rows=definition.rows,
        test_rows=len(cohorts.test),
        ballot_bytes=definition.shape.size_bytes,
        features=len(cohorts.public.columns),
        task_digest=definition.digest,
        public_set_digest=definition.public_set,
    )
