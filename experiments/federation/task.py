"""Task definitions over encoded public rows that no coordinator ever published."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from silo_agent.trainer.models.protocol import Features
from wire.task.definition import TaskDefinition


def define_task(
    public: Features, labels: int | Sequence[str], silos: Sequence[str], **settings: Any
) -> TaskDefinition:
    """A definition over encoded public rows; `settings` as task.yaml has them.

    All silos vote in every round, and rounds are not ended early by churn unless `settings` says so. `labels` are
    the classes' names, or how many classes there are.
    """
    names = [str(index) for index in range(labels)] if isinstance(labels, int) else list(labels)
    rounds = {"quorum": len(silos), "stop_patience": 0, **settings.pop("rounds", {})}
    return TaskDefinition.model_validate(
        {
            "name": "experiment",
            "public_set": public_set_digest(public),
            "rows": len(public),
            "labels": names,
            "silos": list(silos),
            "rounds": rounds,
            **settings,
        }
    )


def public_set_digest(public: Features) -> str:
    """SHA-256 of the encoded rows: stands for the digest of the file that a coordinator would publish."""
    return hashlib.sha256(np.ascontiguousarray(public).tobytes()).hexdigest()
