"""`consilium agent check`: everything that can go wrong before the first round, found on the private side.

It runs where the data are, so it may quote a few values; the network side never sees them.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from silo_agent.home import SiloHome
from silo_agent.models.catalogue import build
from silo_agent.trainer.private_data import PrivateData, load_private
from silo_agent.trainer.schema_check import check
from silo_agent.trainer.settings import read_settings
from wire.errors import ConfigurationError
from wire.public_content import inspect
from wire.task import TaskDefinition


def rehearse(home: SiloHome, public_file: Path | None, console: Console) -> None:
    """Reads silo.yaml, the data and the learner, and compares with public sets; raises on a misfit."""
    settings = read_settings(home.settings_file)
    console.print(f"[green]ok[/]  {home.settings_file}")
    private = load_private(settings.data, home.settings_file.parent)
    unit = "patient" if settings.data.patient_id else "row"
    console.print(
        f"[green]ok[/]  private data: {private.rows} rows; the unit of privacy is the {unit}"
    )
    build(settings.model, classes=2, row_shape=(1,), seed=settings.seed)
    console.print(f"[green]ok[/]  learner {settings.model.name}")
    failed = 0
    for label, path, labels in _public_sets(home, public_file):
        _, schema = inspect(path)
        misfits = check(private, schema, labels or _labels_in(private))
        for misfit in misfits:
            mark = "[red]failed[/]" if misfit.fatal else "[yellow]note[/]"
            text = escape(f"{label}: {misfit.sentence} {misfit.private_detail}")
            console.print(f"{mark}  {text}")
        failed += any(misfit.fatal for misfit in misfits)
        if not misfits:
            console.print(f"[green]ok[/]  {label}: the private data fit")
    if failed:
        raise ConfigurationError(
            "The private data do not fit.", "Correct the data or silo.yaml as said above."
        )


def _labels_in(private: PrivateData) -> tuple[str, ...]:
    """The labels that occur, where no task says which there should be."""
    return tuple(sorted({label for label in private.labels.to_pylist() if label}))


def _public_sets(
    home: SiloHome, public_file: Path | None
) -> list[tuple[str, Path, tuple[str, ...]]]:
    """What to compare with: a file that was named, else the public set of every task seen so far."""
    if public_file is not None:
        return [(public_file.name, public_file, ())]
    found = []
    for path in sorted((home.trainer / "tasks").glob("*/definition.json")):
        definition = TaskDefinition.model_validate_json(path.read_text(encoding="utf-8"))
        content = home.public_sets / definition.public_set
        if content.exists():
            found.append((f"task {definition.name}", content, definition.labels))
    return found
