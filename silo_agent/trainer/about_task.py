"""What a person is told before approving: what a task's public set is, and what the hospital's rows are beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from silo_agent.shared.home import SiloHome
from silo_agent.trainer.data.private_data import PrivateData, load_private
from silo_agent.trainer.data.public_summary import overlap, summary
from silo_agent.trainer.data.schema_check import check, prepare
from silo_agent.trainer.public_copies import PublicCopies
from silo_agent.trainer.settings import SiloSettings
from wire.errors import CONTENT_CORRUPT, ConsiliumError, Refusal
from wire.public_content import inspect
from wire.schema import SetSchema
from wire.task.definition import TaskDefinition


def about_task(home: SiloHome, settings: SiloSettings, definition: TaskDefinition) -> list[str]:
    """Lines for whoever approves the task here; nothing of them leaves."""
    with PublicCopies.borrowed(home) as copies:
        try:
            return _compared(home, settings, definition, copies.public_set(definition))
        except Refusal as refusal:
            if not refusal.is_a(CONTENT_CORRUPT):
                raise
            fetch = f"consilium agent fetch {definition.public_set}"
            return [f"the public set is not here yet, so nobody has looked into it: `{fetch}`"]


def _compared(
    home: SiloHome, settings: SiloSettings, definition: TaskDefinition, path: Path
) -> list[str]:
    try:
        lines = summary(path)
        _, schema = inspect(path)
        private = load_private(settings.data, home.settings_file.parent)
        unfit = [misfit.sentence for misfit in check(private, schema) if misfit.fatal]
        return lines + (unfit or about_rows(private, schema, path, definition.labels))
    except ConsiliumError as error:
        return [error.sentence]


def about_rows(
    private: PrivateData, schema: SetSchema, path: Path, labels: Sequence[str]
) -> list[str]:
    """How many cells are not taken as they are, and how many rows are in the public set, too."""
    rows = prepare(private, schema, labels)
    lines = []
    for note in rows.treated:
        lines += [note.sentence, *filter(None, [note.quoted])]
    ours, theirs = overlap(path, schema, rows.features)
    if ours:
        lines.append(
            f"WARNING: {ours} of {private.rows} private rows equal a public row ({theirs} public rows equal a private "
            "one). If they are the same patients, their rows are public; if they are not, too few columns tell them apart."
        )
    return lines
