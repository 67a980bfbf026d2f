"""silo.yaml: where the private data are and which learner to train. Read on the private side only."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from silo_agent.models.catalogue import LearnerSpec
from silo_agent.trainer.policy import Policy
from silo_agent.trainer.private_data import DataSettings
from wire.configuration import read_yaml


class SiloSettings(BaseModel):
    """What a hospital's data scientist writes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: DataSettings
    model: LearnerSpec
    """A learner's name, or `{name: …, parameters: {…}}`; `package.module:Class` for your own."""
    seed: int = 0
    """Makes training repeatable; it does not influence privacy."""
    policy: Policy = Policy()
    """Which tasks may be trained for and voted in, and who accepts them."""


def read_settings(path: Path) -> SiloSettings:
    """The settings at `path`, or ConfigurationError naming the key and the fix."""
    return read_yaml(path, SiloSettings)
