"""`consilium agent ledger`: what left this hospital, what it cost its patients, and what may still be spent."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from silo_agent.shared.home import SiloHome
from silo_agent.shared.home_option import Home
from wire.errors import ConfigurationError, Refusal
from wire.runtime.files import write_atomically
from wire.runtime.terminal import (
    Format,
    JsonFlag,
    export_text,
    print_json,
    say,
)

if TYPE_CHECKING:
    from silo_agent.trainer.privacy.ledger.ledger import Ledger
    from silo_agent.trainer.privacy.settings import PrivacySettings

ledger = typer.Typer(help="What was released, what it cost and what is left.")


@ledger.callback(invoke_without_command=True)
def report(
    context: typer.Context,
    home: Home,
    last: Annotated[int, typer.Option(help="How many of the newest entries.", min=1)] = 20,
    as_json: JsonFlag = False,
    csv: Annotated[
        Path | None, typer.Option(help="Write all entries as CSV; - prints them.")
    ] = None,
) -> None:
    """Show every release, the privacy spent by it, and what is left of the budgets."""
    if context.invoked_subcommand is not None:
        _refuse_options_before(context)
        return
    from silo_agent.trainer.privacy.ledger.report import examine
    from silo_agent.trainer.privacy.ledger.view import print_report

    whole = as_json or csv is not None
    entries = _ledger(home).entries()
    found = examine(entries, _settings(home), None if whole else last)
    if as_json:
        print_json(found.as_json())
    elif csv is not None:
        _export([row.as_csv() for row in found.rows], csv)
    else:
        print_report(found, len(entries) - len(found.rows))


@ledger.command()
def verify(home: Home, as_json: JsonFlag = False) -> None:
    """Recompute the chain and hold its end against the witness; fails if either does not fit."""
    try:
        head = _ledger(home).verify()
    except Refusal as refusal:
        if not as_json:
            raise
        print_json({"whole": False, "code": refusal.code, "why": refusal.sentence})
        raise typer.Exit(1) from None
    if as_json:
        print_json({"whole": True, "entries": head.sequence, "head": head.hash})
        return
    say("[green]ok[/]  {} entries, head {}", head.sequence, head.hash)
    say("    witness: {}", SiloHome(home).ledger_witness)


@ledger.command(name="write-off")
def write_off(
    home: Home,
    epsilon: Annotated[
        float,
        typer.Option(help="ε assumed to have been spent; 0 if nothing is lacking, inf if unknown."),
    ],
    note: Annotated[str, typer.Option(help="What happened, and how you know what was spent.")],
    ballots: Annotated[
        int | None,
        typer.Option(help="Ballots no longer on the books; default: as the witness says.", min=0),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Data set to charge; default: the one in silo.yaml.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """After a loss of the ledger: charge what it lacks, as an assumption of yours that stays on record."""
    from silo_agent.trainer.privacy.budget import shown
    from wire.identity.account import os_account

    if math.isnan(epsilon) or epsilon < 0:
        raise ConfigurationError(f"--epsilon {epsilon:g} is no privacy loss.", "Give 0 or more.")
    words = note.encode(errors="replace").decode().strip()
    if not words:
        raise ConfigurationError("--note is empty.", "Say what happened; it stays on record.")
    books, settings = _ledger(home), _settings(home)
    lacking = books.lacking() if ballots is None else ballots
    name, who = dataset or settings.dataset, os_account()
    say(
        "Data set {} is charged ε = {} for {} ballots. This is what {} assumes, an estimate and not a "
        "guarantee. It is never taken back.",
        name,
        shown(epsilon),
        lacking,
        who,
    )
    if not yes:
        typer.confirm("Write it off?", abort=True)
    link = books.write_off(name, epsilon, settings.delta, lacking, who, words)
    say("Entry {} of {}.", link.sequence, SiloHome(home).ledger)


def _ledger(home: Path) -> Ledger:
    from silo_agent.trainer.privacy.ledger.ledger import Ledger

    folder = SiloHome(home)
    return Ledger(folder.ledger, folder.ledger_witness, lambda: datetime.now(UTC))


def _settings(home: Path) -> PrivacySettings:
    """The `privacy` section of silo.yaml, whatever else stands there."""
    from pydantic import BaseModel

    from silo_agent.trainer.privacy.settings import PrivacySettings
    from wire.runtime.configuration import read_yaml

    class Section(BaseModel):
        privacy: PrivacySettings = PrivacySettings()

    return read_yaml(SiloHome(home).settings_file, Section).privacy


def _refuse_options_before(context: typer.Context) -> None:
    """An option meant for a command and given to its group would be dropped without a word."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = "--json" if name == "as_json" else f"--{name}"
            raise ConfigurationError(
                f"{option} stands before `{context.invoked_subcommand}`.",
                f"Put it behind: `consilium agent ledger {context.invoked_subcommand} {option} …`.",
            )


def _export(rows: list[dict[str, object]], path: Path) -> None:
    text = export_text(rows, Format.CSV)
    if str(path) == "-":
        typer.echo(text, nl=False)
        return
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}.") from None
    say("{} entries written to {}.", len(rows), path)
