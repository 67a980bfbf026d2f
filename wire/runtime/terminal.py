"""Output of commands: tables, JSON for scripts, and errors with a hint what to do next."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Console
from rich.table import Table

from wire.errors import ConsiliumError

console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def print_json(value: Any) -> None:
    """JSON on standard output, nothing else."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_messages(key: str, messages: Iterable[Message]) -> None:
    """A listing of protobuf messages as JSON: an object with one list."""
    print_json({key: [as_dict(message) for message in messages]})


def as_dict(message: Message) -> dict[str, Any]:
    """A message with its proto field names, unset fields included."""
    return dict(
        MessageToDict(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
    )


def print_table(
    title: str, rows: Sequence[Mapping[str, object]], *, empty: str, caption: str = ""
) -> None:
    """Rows with the same keys as a table, or one sentence if there are none."""
    if not rows:
        console.print(empty)
        return
    table = Table(title=title, title_justify="left", caption=caption or None)
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    console.print(table)


class Format(StrEnum):
    """File formats of exported records."""

    CSV = "csv"
    JSON = "json"


def export_text(rows: Sequence[Mapping[str, object]], kind: Format) -> str:
    """Rows with the same keys as CSV with a header line, or as a JSON object with one list."""
    if kind is Format.JSON:
        return json.dumps({"entries": rows}, indent=2, ensure_ascii=False, default=str) + "\n"
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]) if rows else [])
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def print_error(error: ConsiliumError) -> None:
    """Prints code, sentence and hint to standard error."""
    errors.print(f"[bold red]error[/] [dim]{error.code}[/]  {_plain(error.sentence)}")
    if error.hint:
        errors.print(f"       [dim]→[/] {_plain(error.hint)}")


def print_warning(sentence: str) -> None:
    """Prints a warning to standard error."""
    errors.print(f"[bold yellow]warning[/]  {_plain(sentence)}")


def local_time(moment: Timestamp | datetime | None) -> str:
    """A moment on this machine's clock, or a dash."""
    if isinstance(moment, Timestamp):
        if moment.seconds == 0:
            return "–"
        moment = moment.ToDatetime().astimezone()
    return "–" if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def size(count: float) -> str:
    """Bytes in the unit a person would use."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def enum_word(name: str) -> str:
    """`TASK_STATUS_RUNNING` → `running`, given the enum's value name without its prefix."""
    return name.lower().replace("_", " ")


def _plain(text: str) -> str:
    # Square brackets in a sentence are not markup.
    return text.replace("[", "\\[")
