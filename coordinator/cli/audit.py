"""`consilium audit`: who did what to the consortium, and whether the record is whole."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC
from pathlib import Path
from typing import Annotated, Final

import typer

from coordinator.cli.connection import AdminClient, Home, admin_link, run
from coordinator.cli.party_view import party_json, party_row, spent_rows, unprotected_words
from coordinator.consensus.party_ledger import require_agreement
from coordinator.consensus.party_noise import PartyEntry, PartyRelease
from wire.consilium.v1 import admin_pb2
from wire.errors import AUDIT_BROKEN, ConfigurationError, Refusal
from wire.runtime.chain import Head, Link, first_break, head_of
from wire.runtime.files import write_atomically
from wire.runtime.terminal import (
    Format,
    JsonFlag,
    export_text,
    local_time,
    print_json,
    print_table,
    say,
)

# The year 10000, beyond what a datetime holds.
_END_OF_TIME: Final = 253_402_300_800

app = typer.Typer(no_args_is_help=True, help="Read and verify the record of every act.")


@app.command(name="list")
def list_command(
    home: Home,
    last: Annotated[int, typer.Option(help="How many of the newest entries.", min=1)] = 50,
    as_json: JsonFlag = False,
) -> None:
    """List the newest acts."""
    entries = _entries(home, last)
    if as_json:
        print_json({"entries": [_row(entry) for entry in entries]})
        return
    shown = [_shown(entry) for entry in entries]
    print_table("Audit", shown, empty="Nothing has happened yet.")


@app.command()
def verify(home: Home, as_json: JsonFlag = False) -> None:
    """Recompute the chain here; find any edit, deletion, insertion or reordering and say where.

    The end of the record is compared with the coordinator's head and with the one that the last verification
    left beside the admin's identity: a record that was cut short or written anew since then is noticed too.
    """
    remembered = home / "admin" / "audit-head.json"
    links, before, after = run(_chain(home))
    known = (before, _remembered(remembered))
    broken = first_break(links, known, at_most=after.sequence)
    head = head_of(links)
    if as_json:
        print_json(
            {
                "entries": len(links),
                "head": asdict(head),
                "broken": asdict(broken) if broken else None,
                "whole": broken is None,
            }
        )
    if broken is not None:
        raise (
            typer.Exit(1)
            if as_json
            else Refusal(AUDIT_BROKEN, sequence=broken.sequence, why=broken.why)
        )
    write_atomically(remembered, json.dumps(asdict(head)).encode())
    if not as_json:
        say("[green]ok[/]  {} entries, head {}", len(links), head.hash)


@app.command()
def export(
    home: Home,
    out: Annotated[Path | None, typer.Option(help="File to write; default: print.")] = None,
    kind: Annotated[Format, typer.Option("--format", help="csv or json.")] = Format.CSV,
) -> None:
    """Write the whole record for an officer."""
    rows = [_row(entry) for entry in _entries(home)]
    text = export_text(rows, kind)
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        write_atomically(out, text.encode())
    except OSError as error:
        raise ConfigurationError(f"{out} cannot be written: {error.strerror}.") from None
    say("{} entries written to {}.", len(rows), out)


@app.command()
def privacy(
    home: Home,
    delta: Annotated[float, typer.Option(help="The δ at which ε is derived.")] = 1e-5,
    as_json: JsonFlag = False,
) -> None:
    """Show what consensuses behind party-level noise have cost, per task and in total.

    ε is derived from the coordinator's ledger, which must agree with the audit record. It bounds what whoever sees
    the consensuses learns about the ballots of any one silo.
    """
    if not 0 <= delta < 1:
        raise ConfigurationError(f"--delta: {delta:g} is not between 0 and 1.", "Try 1e-5.")
    entries, bare = run(_party_ledger(home))
    if as_json:
        print_json(party_json(entries, bare, delta))
        return
    print_table(
        "Noisy consensuses", [party_row(entry) for entry in entries], empty="There is none yet."
    )
    if entries:
        print_table(f"Spent per silo, at δ = {delta:g}", spent_rows(entries, delta), empty="")
    if bare:
        say("{}", unprotected_words(bare))


def _entries(home: Path, last: int | None = None) -> list[admin_pb2.ListAuditResponse]:
    """The newest `last` entries, or all."""

    async def call() -> list[admin_pb2.ListAuditResponse]:
        async with admin_link(home) as link:
            after = 0 if last is None else max(0, (await _head(link)).sequence - last)
            request = admin_pb2.ListAuditRequest(after_sequence=after)
            entries = [entry async for entry in link.admin.ListAudit(request)]
        return entries if last is None else entries[-last:]

    return run(call())


async def _chain(home: Path) -> tuple[list[Link], Head, Head]:
    """The whole chain, and its head before and after reading: acts meanwhile are no damage."""
    async with admin_link(home) as link:
        before = await _head(link)
        entries = link.admin.ListAudit(admin_pb2.ListAuditRequest())
        links = [link_of(entry) async for entry in entries]
        return links, before, await _head(link)


async def _party_ledger(home: Path) -> tuple[list[PartyEntry], dict[str, int]]:
    """The coordinator's ledger, found to agree with its record; and rounds published without noise, by task."""
    async with admin_link(home) as link:
        before = await _head(link)
        request = admin_pb2.ListPartyReleasesRequest()
        entries = [_party_entry(entry) async for entry in link.admin.ListPartyReleases(request)]
        tasks = (await link.admin.ListTasks(admin_pb2.ListTasksRequest())).tasks
        audit = link.admin.ListAudit(admin_pb2.ListAuditRequest())
        links = [link_of(entry) async for entry in audit]
    broken = first_break(links, (before, _remembered(home / "admin" / "audit-head.json")))
    if broken is not None:
        raise Refusal(AUDIT_BROKEN, sequence=broken.sequence, why=broken.why)
    require_agreement(entries, links, before)
    noisy = {entry.task for entry in entries}
    return entries, {
        task.definition.name: task.consensus.round
        for task in tasks
        if task.consensus.round and task.definition.name not in noisy
    }


def _party_entry(entry: admin_pb2.ListPartyReleasesResponse) -> PartyEntry:
    return PartyEntry(
        task=entry.task,
        round=entry.round,
        released_at=entry.released_at.ToDatetime(tzinfo=UTC),
        release=PartyRelease(
            entry.sensitivity, entry.gamma_micros, entry.rows, max(1, entry.draws)
        ),
    )


async def _head(link: AdminClient) -> Head:
    response = await link.admin.GetAuditHead(admin_pb2.GetAuditHeadRequest())
    return Head(response.sequence, response.hash)


def _remembered(path: Path) -> Head:
    """Where the chain ended at the last verification."""
    if not path.exists():
        return Head()
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return Head(int(values["sequence"]), str(values["hash"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigurationError(
            f"{path} is damaged, so an audit record cut short would not be noticed.",
            "Restore it, or delete it and compare the head with one written down earlier.",
        ) from None


def _row(entry: admin_pb2.ListAuditResponse) -> dict[str, object]:
    return {
        "sequence": entry.sequence,
        "time": _moment(entry),
        "actor": entry.actor,
        "act": entry.act,
        "subject": entry.subject,
        "details": entry.details,
        "previous": entry.previous,
        "hash": entry.hash,
    }


def _shown(entry: admin_pb2.ListAuditResponse) -> dict[str, object]:
    row = _row(entry)
    del row["previous"], row["hash"]
    return {**row, "time": local_time(entry.at)}


def _moment(entry: admin_pb2.ListAuditResponse) -> str:
    """When it happened, as it is hashed: UTC, to the microsecond."""
    if not 0 <= entry.at.seconds < _END_OF_TIME:
        return f"unknown ({entry.at.seconds})"
    return entry.at.ToDatetime(tzinfo=UTC).isoformat(timespec="microseconds")


def _details(entry: admin_pb2.ListAuditResponse) -> object:
    try:
        return json.loads(entry.details)
    except ValueError:
        why = "its details are not JSON"
        raise Refusal(AUDIT_BROKEN, sequence=entry.sequence, why=why) from None


def link_of(entry: admin_pb2.ListAuditResponse) -> Link:
    """An entry as it is chained."""
    content = {
        "at": _moment(entry),
        "actor": entry.actor,
        "act": entry.act,
        "subject": entry.subject,
        "details": _details(entry),
    }
    return Link(entry.sequence, content, entry.previous, entry.hash)
