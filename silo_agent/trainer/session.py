"""One task on the private side: data checked and encoded once, then one paid ballot per round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from silo_agent.models.catalogue import build, reads
from silo_agent.models.extractors.loading import StoredExtractor
from silo_agent.models.extractors.protocol import Extractor
from silo_agent.models.protocol import AnyLearner, Features, Labelled, Labels
from silo_agent.privacy.certainty import with_certainty
from silo_agent.privacy.ledger import Ledger
from silo_agent.privacy.mechanisms.catalogue import build as build_mechanism
from silo_agent.privacy.mechanisms.protocol import Extracted, PrivateSide, Scope
from silo_agent.trainer.features import Encoder
from silo_agent.trainer.fedct import CoTraining
from silo_agent.trainer.home_model import HomeModel
from silo_agent.trainer.learning import Learning
from silo_agent.trainer.private_data import load_private
from silo_agent.trainer.releasing import PaidBallot, Releasing
from silo_agent.trainer.schema_check import Misfit, check, prepare
from silo_agent.trainer.settings import SiloSettings, TrainingSettings
from silo_agent.trainer.specialists import specialised
from silo_agent.trainer.starting import Start, load_start
from silo_agent.trainer.task_folder import FINAL_CONSENSUS, Folder, TaskFolder
from wire.ballot import BallotShape
from wire.crash_points import crash_point
from wire.privacy.declaration import Unit
from wire.privacy.randomness import Bits
from wire.schema import SetSchema
from wire.task import TaskDefinition


@dataclass(frozen=True, eq=False)
class Session:
    """A task this silo is ready for."""

    definition: TaskDefinition
    folder: Folder
    encoder: Encoder | None
    """How raw rows are read; None in experiments, whose rows are encoded already."""
    learning: Learning
    releasing: Releasing
    extracted: Extracted | None = None
    """Rows as the task's extractor sees them."""
    extractor: Extractor | None = None
    """What the learner sees rows through, if silo.yaml says so."""
    numbers: Extracted | None = None
    """Rows as numbers, where the learner reads texts."""

    @property
    def shape(self) -> BallotShape:
        """The form of this task's ballots."""
        return self.definition.shape

    def vote(self, number: int, consensus: bytes | None, known_ballots: int = 0) -> PaidBallot:
        """The ballot of round `number`; asked again, the identical one.

        `consensus` is the latest published one, packed in the index encoding; `known_ballots` is how many
        are known to have left here, so that an old copy of the ledger is noticed.
        """
        self.releasing.require_ballots(known_ballots)
        if self.folder.ballot(number) is None:
            crash_point("vote-asked")
            # One that continues takes its steps in every round, also where a mechanism votes without it.
            if self.learning.continues:
                self.learning.advance(number, consensus)
        return self.releasing.ballot(self._private_side(number, consensus))

    def finish(self, number: int, consensus: bytes | None) -> None:
        """Keeps the final consensus, that of round `number`; trains once more on it and keeps the model."""
        if self.folder.model_path() is None:
            if self.encoder is None:
                raise ValueError("a model that cannot read raw rows is of no use at home")
            if consensus is not None:
                self.folder.put(FINAL_CONSENSUS, consensus)
            learner = self.home_learner(number + 1, consensus)
            crash_point("model-trained")
            labels = self.definition.labels
            self.folder.keep_model(HomeModel(self.encoder, learner, labels, self.extractor))
            crash_point("model-kept")

    def home_learner(self, number: int, consensus: bytes | None) -> AnyLearner:
        """The model this silo keeps, trained in the place of round `number`."""
        return self.learning.home_learner(number, consensus)

    def _private_side(self, number: int, consensus: bytes | None) -> PrivateSide:
        learning, known = self.learning, self.releasing.known

        # An estimate of the sensitivity asks before the vote does.
        @cache
        def predict() -> Labels:
            return learning.labels(number, consensus)

        return PrivateSide(
            private=learning.training.private,
            patients=learning.patients,
            public=learning.training.public,
            classes=len(self.definition.labels),
            number=number,
            predict=predict,
            predict_without=lambda unit: learning.labels_without(unit, number, consensus),
            build=learning.training.build,
            kept=self.folder,
            extracted=self.extracted,
            numbers=self.numbers,
            known=known if len(known) < len(self.definition.labels) else None,
        )


@dataclass(frozen=True)
class Office:
    """What all tasks of this silo share: silo.yaml, where it lies, and what keeps the books."""

    settings: SiloSettings
    base: Path
    """The folder that paths in silo.yaml are relative to."""
    tasks: Path
    ledger: Ledger
    bits: Bits


def open_session(
    definition: TaskDefinition,
    schema: SetSchema,
    public_file: Path,
    office: Office,
    silo: str = "",
    extractor: Extractor | None = None,
) -> tuple[Session | None, list[Misfit]]:
    """A session if data and privacy mechanism fit the task, and what was found either way.

    `silo` is this silo's name, which a task may have its own label space for.
    """
    settings = office.settings
    known = definition.label_space(silo)
    private = load_private(settings.data, office.base)
    read = reads(settings.model)
    misfits = check(private, schema, definition.labels, known=known, reads=read)
    if any(misfit.fatal for misfit in misfits):
        return None, misfits
    encoder = Encoder.from_public(schema, public_file)
    ready = prepare(private, schema, definition.labels)
    start: Start | str | None = None
    if settings.start_from is not None:
        path, raw = office.base / settings.start_from, settings.features == "raw"
        start = load_start(path, definition, encoder, known, raw=raw)
    if isinstance(start, str):
        return None, [*misfits, Misfit(start)]
    folder = TaskFolder(office.tasks, definition.digest)
    folder.keep_definition(definition)
    texts = read == "texts"
    session = assemble(
        definition,
        settings,
        Labelled(encoder.encode(ready.features, flat=False, texts=texts), ready.labels),
        encoder.public(flat=False, texts=texts),
        Keeping(folder, office.ledger, office.bits),
        patients=ready.patients,
        unit=settings.unit,
        known=known,
        extractor=extractor,
        encoder=encoder,
        start=start,
        silo=silo,
        numbers=Extracted(encoder.encode(ready.features), encoder.public()) if texts else None,
    )
    if isinstance(session, str):
        return None, [*misfits, Misfit(session)]
    session.releasing.require_kept_ballots()
    return session, misfits


@dataclass(frozen=True)
class Keeping:
    """Where a task's traces go: its folder, the silo's ledger; and the bits that noise is made of."""

    folder: Folder
    ledger: Ledger
    bits: Bits


def assemble(
    definition: TaskDefinition,
    settings: TrainingSettings,
    private: Labelled,
    public: Features,
    keeping: Keeping,
    *,
    patients: NDArray[np.int64],
    unit: Unit,
    known: tuple[int, ...],
    extractor: Extractor | None = None,
    encoder: Encoder | None = None,
    start: Start | None = None,
    silo: str = "",
    numbers: Extracted | None = None,
) -> Session | str:
    """A session over rows as the learner reads them, or the sentence that says why the silo cannot serve the task.

    `numbers` are the same rows encoded, where the learner reads texts.
    """
    extracted = None
    beginning = extractor.file if isinstance(extractor, StoredExtractor) else None
    if extractor is not None:
        plain = numbers or Extracted(private.features, public)
        extracted = Extracted(extractor.transform(plain.private), extractor.transform(plain.public))
    if settings.features == "extractor":
        if extracted is None:
            return "silo.yaml says features: extractor, and the task names no extractor."
        private, public = Labelled(extracted.private, private.labels), extracted.public
    row_shape = tuple(public.shape[1:])
    training = CoTraining(
        private=private,
        public=public,
        build=specialised(
            lambda classes, seed: build(settings.model, classes, row_shape, seed, beginning),
            known,
            len(definition.labels),
        ),
        local_steps=definition.local_steps,
        seed=settings.seed,
    )
    scope = Scope(
        shape=definition.shape,
        rounds=definition.rounds.max_rounds,
        epsilon=settings.privacy.epsilon,
        delta=settings.privacy.delta,
        unit=unit,
        units=len(np.unique(patients)),
    )
    mechanism = build_mechanism(settings.privacy.mechanism, scope, definition.fedkt)
    if definition.fedaux is not None:
        if extracted is None:
            return (
                "The task weights votes by what its extractor sees, and the extractor is not here."
            )
        mechanism = with_certainty(
            mechanism, settings.privacy, scope, definition.fedaux, definition.public_set
        )
    if why := mechanism.misfit():
        return why
    releasing = Releasing(
        definition=definition,
        folder=keeping.folder,
        settings=settings.privacy,
        mechanism=mechanism,
        scope=scope,
        ledger=keeping.ledger,
        bits=keeping.bits,
        known=known,
    )
    learning = Learning(
        definition=definition,
        folder=keeping.folder,
        training=training,
        patients=patients,
        consensus_share=settings.consensus_share,
        start=start,
        silo=silo,
    )
    return Session(
        definition=definition,
        folder=keeping.folder,
        encoder=encoder,
        learning=learning,
        releasing=releasing,
        extracted=extracted,
        extractor=extractor if settings.features == "extractor" else None,
        numbers=numbers,
    )
