"""silo.yaml: where the private data are and which learner to train. Read on the private side only.

A trainer reads it once, when it starts, and goes by what it read then. `RunningSettings` refuses every step while the
file says something else, so that nobody approves what the file promises and gets what the process does.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import structlog
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_jsonable_python

from silo_agent.shared.home import SiloHome
from silo_agent.trainer.approval.policy import ApprovalCriteria, Policy
from silo_agent.trainer.data.private_data import DataSettings
from silo_agent.trainer.models.catalogue import LearnerSpec
from silo_agent.trainer.privacy.settings import PrivacySettings
from wire.errors import SETTINGS_CHANGED, ConfigurationError, Refusal
from wire.privacy.declaration import Unit
from wire.runtime.configuration import read_yaml

log = structlog.get_logger()


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

    @property
    def fingerprint(self) -> str:
        """Digest of everything the file says; what is at its default counts as not said."""
        return _digest(_said(self))

    @property
    def criteria(self) -> ApprovalCriteria:
        """What tasks are judged by.

        The policy is not part of the digest an approval is bound to: it decides nothing of what leaves, and its
        limits are looked at in every step.
        """
        said = {key: value for key, value in _said(self).items() if key != "policy"}
        return ApprovalCriteria(self.policy, _digest(said), self.privacy.promise)


@dataclass(frozen=True)
class RunningSettings:
    """What a process runs with, and the file it was read from."""

    settings: SiloSettings
    file: Path

    def unchanged(self) -> bool:
        """True while the file says what was read from it."""
        try:
            return read_settings(self.file).fingerprint == self.settings.fingerprint
        except ConfigurationError as error:
            log.error("settings_unreadable", sentence=error.sentence, hint=error.hint)
            return False

    def require_unchanged(self) -> None:
        """SETTINGS_CHANGED once the file says something else, or nothing that can be read."""
        if not self.unchanged():
            raise Refusal(SETTINGS_CHANGED)


def read_settings(path: Path) -> SiloSettings:
    """The settings at `path`, or ConfigurationError naming the key and the fix."""
    settings = read_yaml(path, SiloSettings)
    _require_private(settings, SiloHome(path.parent))
    return settings.model_copy(update={"model": settings.model.found_from(path.parent)})


def _require_private(settings: SiloSettings, home: SiloHome) -> None:
    """ConfigurationError if the trainer would read something that the network side can exchange: a student is code."""
    named = {
        "data.path": settings.data.path,
        "start_from": settings.start_from,
        "model.parameters.path": settings.model.parameters.get("path"),
    }
    for key, value in named.items():
        if isinstance(value, str | Path):
            found = (home.root / value).resolve()
            if found.is_relative_to(home.exchange.resolve()):
                raise ConfigurationError(
                    f"{home.settings_file}: `{key}` lies in {home.exchange}, where the network side writes.",
                    "Move it to a folder that only the private side can write.",
                )


def _said(model: BaseModel) -> dict[str, object]:
    """The fields that are not at their default, so that a setting which a later version adds changes no digest.

    A `name` is always there: it tells mechanisms apart of which nothing else was said.
    """
    fields = type(model).model_fields.items()
    values = ((name, getattr(model, name), field) for name, field in fields)
    return {
        name: _said(value) if isinstance(value, BaseModel) else to_jsonable_python(value)
        for name, value, field in values
        if name == "name" or value != field.get_default(call_default_factory=True)
    }


def _digest(said: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
