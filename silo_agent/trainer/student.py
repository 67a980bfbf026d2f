"""A public student: a model trained on a public set and its consensus, and on nothing else.

The papers have no global model; this is one. Public rows and published labels are all it ever sees, so it is
post-processing of what everybody may see: it costs no hospital anything and may be given to anyone who may have the
consensus. It reads raw rows and answers with class names, as the model a hospital keeps does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import ValidationError

from silo_agent.shared.home import SiloHome
from silo_agent.trainer.data.features import Encoder
from silo_agent.trainer.data.home_model import HomeModel
from silo_agent.trainer.models.catalogue import LearnerSpec, build, reads
from silo_agent.trainer.models.protocol import Labelled, Labels
from silo_agent.trainer.models.scratch_fit import fit_from_scratch
from silo_agent.trainer.models.stored import dump
from silo_agent.trainer.public_copies import PublicCopies
from silo_agent.trainer.task_folder import FINAL_CONSENSUS, find_task
from wire.ballot import ABSTAIN, unpack
from wire.errors import ConfigurationError, Refusal
from wire.public_content import inspect
from wire.runtime.files import digest_of, write_atomically
from wire.task.definition import TaskDefinition

# As `consilium task export` writes them.
DEFINITION: Final = "definition.json"
PUBLIC_SET: Final = "public-set"
CONSENSUS: Final = "consensus.bin"


@dataclass(frozen=True, eq=False)
class LabelledPublicSet:
    """A public set with its consensus labels: the training set of a student."""

    definition: TaskDefinition
    public_file: Path
    labels: Labels = field(repr=False)
    """(rows,) of the public set in order; -1 where there is no consensus."""

    @property
    def labelled_rows(self) -> int:
        """Rows with a label."""
        return int(np.count_nonzero(self.labels != ABSTAIN))

    @property
    def per_class(self) -> Mapping[str, int]:
        """How many rows each class has."""
        names = self.definition.labels
        counts = np.bincount(self.labels[self.labels != ABSTAIN], minlength=len(names))
        return {name: int(count) for name, count in zip(names, counts, strict=True)}


def from_home(home: SiloHome, task: str, copies: PublicCopies) -> LabelledPublicSet:
    """What a silo has of a finished task; of its folder only definition and consensus are opened.

    The public set is a copy among `copies`, which must outlive what is returned.
    """
    folder = find_task(home.tasks, task)
    consensus = folder.get(FINAL_CONSENSUS)
    if consensus is None:
        raise ConfigurationError(
            f"This silo has no final consensus of task {task}.",
            "It is kept when the task has finished here; an admin can export any round with "
            "`consilium task export`.",
        )
    definition = folder.definition()
    try:
        public_file = copies.public_set(definition)
    except Refusal as refusal:
        raise ConfigurationError(
            f"The public set of task {definition.name} cannot be used: {refusal.sentence}",
            "Run the agent once, which fetches it; or export the task.",
        ) from None
    return _labelled_public_set(definition, public_file, consensus)


def from_folder(folder: Path) -> LabelledPublicSet:
    """What `consilium task export` wrote."""
    try:
        definition = TaskDefinition.model_validate_json((folder / DEFINITION).read_text("utf-8"))
        consensus = (folder / CONSENSUS).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{folder} is no exported task: {error.filename} cannot be read ({error.strerror}).",
            "Write it with `consilium task export TASK --out FOLDER`.",
        ) from None
    except (ValidationError, UnicodeDecodeError):
        raise ConfigurationError(
            f"{folder / DEFINITION} is no task definition this version understands.",
            "Write it with `consilium task export TASK --out FOLDER`.",
        ) from None
    return _labelled_public_set(definition, folder / PUBLIC_SET, consensus)


def train(labelled: LabelledPublicSet, learner: LearnerSpec, seed: int) -> HomeModel:
    """Trains the student; deterministic in its arguments. ConfigurationError if no row has a label."""
    definition = labelled.definition
    rows, schema = inspect(labelled.public_file)
    if rows != definition.rows:
        raise ConfigurationError(
            f"The public set has {rows} rows, and the task says {definition.rows}.",
            "Fetch it again.",
        )
    known = labelled.labels != ABSTAIN
    if not known.any():
        raise ConfigurationError(
            f"The consensus of task {definition.name} has no label on any row.",
            "There is nothing to teach; look at `consilium task show` for why.",
        )
    encoder = Encoder.from_public(schema, labelled.public_file)
    public = encoder.public(flat=False, texts=reads(learner) == "texts")
    made = build(learner, len(definition.labels), tuple(public.shape[1:]), seed)
    rows_taught = Labelled(public[known], labelled.labels[known])
    return HomeModel(encoder, fit_from_scratch(made, rows_taught, seed), definition.labels)


def write(student: HomeModel, path: Path) -> tuple[int, str]:
    """Writes the student whole or not at all; its size in bytes and its SHA-256."""
    content = dump(student)
    try:
        write_atomically(path, content)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}.") from None
    return len(content), digest_of(path)


def _labelled_public_set(
    definition: TaskDefinition, public_file: Path, consensus: bytes
) -> LabelledPublicSet:
    if not public_file.is_file() or digest_of(public_file) != definition.public_set:
        raise ConfigurationError(
            f"The public set of task {definition.name} is not at {public_file}, or is another one.",
            "Export the task again, or run the agent once, which fetches it.",
        )
    try:
        labels = unpack(consensus, definition.shape.as_index())
    except Refusal as refusal:
        raise ConfigurationError(
            f"The consensus of task {definition.name} cannot be read: {refusal.sentence}",
            "Export the task again.",
        ) from None
    return LabelledPublicSet(definition, public_file, labels.astype(np.int64))
