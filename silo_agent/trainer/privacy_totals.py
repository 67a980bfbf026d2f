"""The ledger in numbers, as the hospital's own metrics show them."""

from __future__ import annotations

import math

from silo_agent.trainer.privacy.ledger.ledger import Ledger
from silo_agent.trainer.privacy.settings import PrivacySettings
from wire.consilium.v1 import trainer_pb2
from wire.privacy.declaration import MICRO
from wire.task.definition import TaskDefinition


def privacy_totals(
    ledger: Ledger, settings: PrivacySettings, task: TaskDefinition | None = None
) -> trainer_pb2.PrivacyTotals:
    """What was released and spent; of `task` too, if one is given. Rounded up; no bound leaves a field out."""
    releases = ledger.releases(dataset=settings.dataset)
    numbers = trainer_pb2.PrivacyTotals(
        releases=len(releases),
        ballots=sum(release.ballots for release in releases),
        estimates=sum(release.estimate for release in releases),
        spent_micros=_micros(ledger.spent(settings.dataset, settings.delta)),
        budget_micros=_micros(settings.lifetime_epsilon),
    )
    if task is not None:
        spent = ledger.spent(settings.dataset, settings.delta, task.digest)
        numbers.MergeFrom(
            trainer_pb2.PrivacyTotals(
                task_spent_micros=_micros(spent), task_budget_micros=_micros(settings.epsilon)
            )
        )
    return numbers


def _micros(epsilon: float | None) -> int | None:
    return None if epsilon is None or math.isinf(epsilon) else math.ceil(epsilon * MICRO)
