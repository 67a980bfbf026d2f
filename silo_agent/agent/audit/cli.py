"""`consilium agent audit`: list, verify and export the record of what left this hospital and what came."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from silo_agent.agent.audit.file import StoredRecord, read_record
from silo_agent.agent.audit.receipts import SignerFolder
from silo_agent.agent.audit.report import Report, rows, verify_record
from silo_agent.shared.home import SiloHome
from silo_agent.shared.home_option import Home
from wire.errors import AUDIT_BROKEN, RECEIPT_UNPROVEN, ConfigurationError, Refusal
from wire.identity.files import IdentityFiles
from wire.runtime.files import write_atomically
from wire.runtime.terminal import (
    Format,
    JsonFlag,
    export_text,
    local_time,
    print_json,
    print_table,
    say,
    size,
)

app = typer.Typer(no_args_is_help=True, help="Read and verify the record of what left and came.")

_EMPTY = "Nothing has left this building, and nothing has come."


@app.command(name="list")
def list_command(
    home: Home,
    last: Annotated[int, typer.Option(help="How many of the newest entries.", min=1)] = 50,
    as_json: JsonFlag = False,
) -> None:
    """List the newest entries."""
    entries = rows(_record(home))[-last:]
    if as_json:
        print_json({"entries": entries})
        return
    print_table("Audit", [_shown(entry) for entry in entries], empty=_EMPTY)


@app.command()
def verify(home: Home, as_json: JsonFlag = False) -> None:
    """Recompute the chain, verify every receipt, name ballots without one.

    Fails if anything was edited, removed, moved or put in, or if a receipt proves nothing.
    """
    report = verify_record(
        _record(home), SignerFolder(SiloHome(home).agent / "signers"), _name(home)
    )
    failures = _failures(report)
    if as_json:
        print_json({**asdict(report), "whole": not failures})
        if failures:
            raise typer.Exit(1)
        return
    if report.broken is None:
        say("[green]ok[/]  {} entries, head {}", report.entries, report.head.hash)
    say("    {} ballots left, {} receipts verified", report.ballots, report.proven)
    for ballot in report.without_receipt:
        answer = "refused by the coordinator" if ballot.refused else "no answer yet"
        where = f"round {ballot.round} of {ballot.task}, entry {ballot.sequence}"
        say("    no receipt: {}, {}", where, answer)
    if report.torn:
        say("    {} half-written lines were left by a crash and set aside", report.torn)
    for failure in failures[:-1]:
        say("[bold red]error[/] {}", failure.sentence)
    if failures:
        raise failures[-1]


@app.command()
def export(
    home: Home,
    out: Annotated[Path | None, typer.Option(help="File to write; default: print.")] = None,
    kind: Annotated[Format, typer.Option("--format", help="csv or json.")] = Format.CSV,
) -> None:
    """Write the whole record, receipts included, for an officer."""
    entries = rows(_record(home))
    text = export_text(entries, kind)
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        write_atomically(out, text.encode())
    except OSError as error:
        raise ConfigurationError(f"{out} cannot be written: {error.strerror}.") from None
    say("{} entries written to {}.", len(entries), out)


def _record(home: Path) -> StoredRecord:
    return read_record(SiloHome(home).agent)


def _name(home: Path) -> str | None:
    try:
        return IdentityFiles.load(SiloHome(home).identity).name
    except ConfigurationError:
        return None


def _failures(report: Report) -> list[Refusal]:
    """Why the record proves nothing, the most serious failure last."""
    failures = [Refusal(RECEIPT_UNPROVEN, **asdict(one)) for one in report.unproven]
    if report.broken is not None:
        broken = report.broken
        failures.append(Refusal(AUDIT_BROKEN, sequence=broken.sequence, why=broken.why))
    return failures


def _shown(entry: dict[str, object]) -> dict[str, object]:
    proof = "proven" if entry["receipt_authority"] else "unproven"
    return {
        "#": entry["sequence"],
        "time": _local(entry["time"]),
        "way": entry["direction"],
        "what": entry["kind"],
        "task": entry["task"],
        "round": entry["round"] or "–",
        "size": size(float(str(entry["bytes"] or 0))),
        "sha256": entry["digest"],
        "receipt": proof if entry["receipt_signer"] else "",
    }


def _local(time: object) -> str:
    try:
        return local_time(datetime.fromisoformat(str(time)))
    except ValueError:
        return str(time)
