"""silo.yaml: where the private data are and which learner to train. Read on the private side only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from silo_agent.trainer.approval.policy import Policy
from silo_agent.trainer.data.private_data import DataSettings
from silo_agent.trainer.models.catalogue import LearnerSpec
from silo_agent.trainer.privacy.settings import PrivacySettings
from wire.privacy.declaration import Unit
from wire.runtime.configuration import read_yaml


class TrainingSettings(BaseModel):
    """How a silo trains and what it lets out, wherever its rows come from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: LearnerSpec
    """A learner's name, or `{name: …, parameters: {…}}`; `package.module:Class` for your own."""
    features: Literal["raw", "extractor"] = "raw"
    """What the learner sees: rows as they are, or what the task's public extractor makes of them."""
    start_from: Path | None = None
    """A model made by `consilium student train`: what the silo begins with, before there is a consensus."""
    seed: int = 0
    """Makes training repeatable; it does not influence privacy."""
    consensus_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the consensus the final model learns from; left out, cross-validation at home decides."""
    privacy: PrivacySettings = PrivacySettings()
    """How ballots are made private, and what they may cost."""


class SiloSettings(TrainingSettings):
    """What a hospital's data scientist writes."""

    data: DataSettings
    policy: Policy = Policy()
    """Which tasks may be trained for and voted in, and who accepts them."""

    @property
    def unit(self) -> Unit:
        """Whose privacy the ledger counts: the patient's where silo.yaml says which rows are whose."""
        return Unit.PATIENT if self.data.patient_id else Unit.ROW


def read_settings(path: Path) -> SiloSettings:
    """The settings at `path`, or ConfigurationError naming the key and the fix."""
    settings = read_yaml(path, SiloSettings)
    return settings.model_copy(update={"model": settings.model.found_from(path.parent)})
