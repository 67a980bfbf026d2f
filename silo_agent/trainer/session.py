"""One task on the private side: data checked and encoded once, then one ballot per round."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from silo_agent.models.catalogue import build
from silo_agent.models.protocol import IterativeLearner, Labelled
from silo_agent.trainer.features import Encoder
from silo_agent.trainer.fedct import AnyLearner, CoTraining
from silo_agent.trainer.home_model import HomeModel
from silo_agent.trainer.private_data import load_private
from silo_agent.trainer.schema_check import Misfit, check, prepare
from silo_agent.trainer.settings import SiloSettings
from silo_agent.trainer.task_folder import TaskFolder
from wire.ballot import BallotShape, pack, unpack
from wire.crash_points import crash_point
from wire.schema import SetSchema
from wire.task import TaskDefinition


@dataclass(frozen=True, eq=False)
class Session:
    """A task this silo is ready for."""

    definition: TaskDefinition
    folder: TaskFolder
    encoder: Encoder
    training: CoTraining

    @property
    def shape(self) -> BallotShape:
        """The form of this task's ballots."""
        return self.definition.shape

    def vote(self, number: int, consensus: bytes | None) -> bytes:
        """The packed ballot of round `number`; asked again, the identical one.

        `consensus` is the latest published one, packed in the index encoding.
        """
        held = self.folder.ballot(number)
        if held is not None:
            return held
        crash_point("vote-asked")
        learner = self._learner(number, consensus)
        ballot = pack(np.asarray(learner.predict(self.training.public)), self.shape)
        crash_point("ballot-made")
        self.folder.keep_ballot(number, ballot)
        crash_point("ballot-kept")
        return ballot

    def finish(self, number: int, consensus: bytes | None) -> None:
        """Trains once more on the final consensus, that of round `number`, and keeps the model."""
        if self.folder.model_path() is None:
            learner = self._learner(number + 1, consensus)
            crash_point("model-trained")
            self.folder.keep_model(HomeModel(self.encoder, learner, self.definition.labels))
            crash_point("model-kept")

    def _learner(self, number: int, consensus: bytes | None) -> AnyLearner:
        # A trainer killed after the state was kept, but before the ballot was, must not train twice.
        held: AnyLearner | None = self.folder.learner(number)
        if held is not None:
            return held
        labels = None if consensus is None else unpack(consensus, self.shape.as_index())
        learner = self.training.fit(number, labels, self.folder.latest_learner(number))
        crash_point("learner-trained")
        if isinstance(learner, IterativeLearner):
            self.folder.keep_learner(number, learner)
            crash_point("learner-kept")
        return learner


def open_session(
    definition: TaskDefinition,
    schema: SetSchema,
    public_file: Path,
    settings: SiloSettings,
    base: Path,
    tasks: Path,
) -> tuple[Session | None, list[Misfit]]:
    """A session if the private data fit the task, and what was found either way."""
    private = load_private(settings.data, base)
    misfits = check(private, schema, definition.labels)
    if any(misfit.fatal for misfit in misfits):
        return None, misfits
    encoder = Encoder.from_public(schema, public_file)
    public = encoder.public(flat=False)
    ready = prepare(private, schema, definition.labels)
    folder = TaskFolder(tasks, definition.digest)
    folder.keep_definition(definition)
    training = CoTraining(
        private=Labelled(encoder.encode(ready.features, flat=False), ready.labels),
        public=public,
        build=lambda seed: build(
            settings.model, len(definition.labels), tuple(public.shape[1:]), seed
        ),
        local_steps=definition.local_steps,
        seed=settings.seed,
    )
    return Session(definition, folder, encoder, training), misfits
