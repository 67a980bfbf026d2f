"""`consilium student`: train a model on a public set and its consensus, and ask it."""

from __future__ import annotations

import csv
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from silo_agent.shared.home import SiloHome
from silo_agent.shared.home_option import Home
from wire.errors import ConfigurationError
from wire.runtime.arrays import read_array
from wire.runtime.columns import UnusableFile
from wire.runtime.csv_text import csv_cell
from wire.runtime.tables import read_table
from wire.runtime.terminal import console, print_table, say, size

student = typer.Typer(
    help="A model for everybody, from public rows and published labels alone.",
    no_args_is_help=True,
)


@student.command()
def train(
    home: Home,
    task: Annotated[
        str | None, typer.Argument(help="A task that has finished on this silo.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--from", help="What `consilium task export` wrote.")
    ] = None,
    model: Annotated[str, typer.Option(help="Any learner, or package.module:Class.")] = (
        "random_forest"
    ),
    parameter: Annotated[
        list[str] | None, typer.Option(help="name=value, as often as needed: max_depth=6.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same student.", min=0)] = 0,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("student.joblib"),
) -> None:
    """Train a student of TASK, or of an exported one. No private row or file is looked at."""
    from silo_agent.trainer import student as students
    from silo_agent.trainer.models.catalogue import LearnerSpec
    from silo_agent.trainer.public_copies import PublicCopies

    if (task is None) == (folder is None):
        raise ConfigurationError("Name a task, or a folder with --from; one of the two.")
    learner = LearnerSpec(name=model, parameters=_parameters(parameter or []))
    with (
        ExitStack() as lent,
        console.status("Reading the public set and its consensus …") as shown,
    ):
        if folder is not None:
            labelled = students.from_folder(folder)
        else:
            silo = SiloHome(home)
            copies = lent.enter_context(PublicCopies.borrowed(silo))
            labelled = students.from_home(silo, task or "", copies)
        shown.update(f"Training {model} on {labelled.labelled_rows} rows …")
        made = students.train(labelled, learner, seed)
        shown.update(f"Writing {out} …")
        count, digest = students.write(made, out)
    print_table(
        f"Student of {labelled.definition.name}",
        [{"class": name, "rows": rows} for name, rows in labelled.per_class.items()],
        empty="",
    )
    abstained = labelled.definition.rows - labelled.labelled_rows
    say("{}, taught {} rows; {} had no consensus.", model, labelled.labelled_rows, abstained)
    say("{}: {}, sha256 {}", out, size(count), digest)


@student.command()
def predict(
    model: Annotated[Path, typer.Argument(help="A student; reading it runs its maker's code.")],
    rows: Annotated[
        Path, typer.Argument(help=".csv or .parquet for tables and texts, .npy for arrays.")
    ],
) -> None:
    """Print the student's label for every row of a file, as CSV."""
    from silo_agent.trainer.data.home_model import load_model

    # Before the model: a wrong path should not cost its loading.
    read = _read(rows)
    labels = load_model(model).predict(read)
    lines = csv.writer(sys.stdout, lineterminator="\n")
    lines.writerow(["label"])
    lines.writerows([csv_cell(label)] for label in labels)


def _read(path: Path) -> Any:
    try:
        return read_array(path) if path.suffix.lower() == ".npy" else read_table(path)
    except UnusableFile as unfit:
        raise ConfigurationError(f"{path} cannot be used: {unfit.why}.", unfit.fix) from unfit


def _parameters(written: list[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for pair in written:
        name, separator, value = pair.partition("=")
        try:
            found[name.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            separator = ""
        if not (separator and name.strip()):
            raise ConfigurationError(
                f"--parameter {pair} is not name=value.", "Write for example max_depth=6."
            )
    return found
