"""Output of commands: sentences, tables, JSON for scripts, and errors with a hint what to do next.

Markup stands only in templates that are written in the source; values are put in as they are, with whatever could
steer the terminal spelled out. `console.print` interprets no markup, and lets no control character through.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from string import Formatter
from types import TracebackType
from typing import Annotated, Any, LiteralString

import typer
from google.protobuf.json_format import MessageToDict, SerializeToJsonError
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Span, Text

from wire.enums import enum_name
from wire.errors import MESSAGE_MALFORMED, ConsiliumError, Refusal
from wire.remote_text import visible, visible_json
from wire.runtime.csv_text import csv_text

_NO_BOUND = sys.maxsize
# Of a private use area, so that no template has it.
_PLACE = "\ue000"


class Terminal(Console):
    """A console that takes strings literally and spells out what is not printable, wherever it comes from."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, soft_wrap=True, markup=False, emoji=False)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of a renderable; only rich's own control segments steer the terminal."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                text = visible(segment.text, _NO_BOUND, lines=True)
                yield Segment(text, segment.style)


console = Terminal()
errors = Terminal(stderr=True)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def styled(template: LiteralString, *values: object) -> Text:
    """A template with rich's markup, in which each `{}` is replaced by a value taken literally."""
    pieces = list(Formatter().parse(template))
    text = Text.from_markup(
        "".join(literal + ("" if field is None else _PLACE) for literal, field, _, _ in pieces),
        emoji=False,
    )
    whole, rest = Text(), text
    for value in values:
        before, place, rest = _parted(rest)
        whole.append_text(before)
        whole.append_text(_in_place_of(place, value))
    return whole.append_text(rest)


def say(template: LiteralString, *values: object, to: Console | None = None) -> None:
    """Prints a template with its values, on standard output unless `to` is another console."""
    (console if to is None else to).print(styled(template, *values), soft_wrap=True)


def say_plain(text: object, most: int = _NO_BOUND) -> None:
    """Prints text as it is on standard output, for scripts to read; what is not printable is spelled out."""
    typer.echo(visible(str(text), most))


def print_json(value: Any) -> None:
    """JSON on standard output, nothing else."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    typer.echo(visible_json(text))


def print_messages(key: str, messages: Iterable[Message]) -> None:
    """A listing of protobuf messages as JSON: an object with one list."""
    print_json({key: [as_dict(message) for message in messages]})


def as_dict(message: Message) -> dict[str, Any]:
    """A message with its proto field names, unset fields included; MESSAGE_MALFORMED if JSON cannot hold it."""
    try:
        return dict(
            MessageToDict(
                message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
            )
        )
    except SerializeToJsonError as error:
        raise Refusal(MESSAGE_MALFORMED, why="a moment in it lies beyond all calendars") from error


def print_table(
    title: str, rows: Sequence[Mapping[str, object]], *, empty: str, caption: str = ""
) -> None:
    """Rows with the same keys as a table, or one sentence if there are none."""
    if not rows:
        console.print(empty)
        return
    table = Table(title=Text(title), title_justify="left", caption=caption or None)
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(cell(value) for value in row.values()))
    console.print(table)


def cell(value: object) -> Text:
    """A value in a table."""
    return Text(visible(str(value)))


class Format(StrEnum):
    """File formats of exported records."""

    CSV = "csv"
    JSON = "json"


def export_text(rows: Sequence[Mapping[str, object]], kind: Format) -> str:
    """Rows with the same keys as CSV with a header line, or as a JSON object with one list."""
    if kind is Format.JSON:
        text = json.dumps({"entries": rows}, indent=2, ensure_ascii=False, default=str)
        return visible_json(text) + "\n"
    return csv_text(rows)


def print_error(error: ConsiliumError) -> None:
    """Prints code, sentence and hint to standard error."""
    say("[bold red]error[/] [dim]{}[/]  {}", error.code, error.sentence, to=errors)
    if error.hint:
        say("       [dim]→[/] {}", error.hint, to=errors)


def print_warning(sentence: str) -> None:
    """Prints a warning to standard error."""
    say("[bold yellow]warning[/]  {}", sentence, to=errors)


def print_traceback(
    kind: type[BaseException], error: BaseException, where: TracebackType | None
) -> None:
    """`sys.excepthook` of commands: Python's own traceback, whose last line may quote another machine."""
    errors.print("".join(traceback.format_exception(kind, error, where)), end="")


def local_time(moment: Timestamp | datetime | None) -> str:
    """A moment on this machine's clock, or a dash."""
    if isinstance(moment, Timestamp):
        if moment.seconds == 0:
            return "–"
        seconds = moment.seconds
        try:
            moment = moment.ToDatetime().astimezone()
        except (ValueError, OverflowError, OSError):
            return f"unknown ({seconds})"
    return "–" if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def size(count: float) -> str:
    """Bytes in the unit a person would use."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def enum_word(kind: Any, number: int) -> str:
    """`TASK_STATUS_RUNNING` → `running`; `unknown (9999)` for a number this release has no name for."""
    return enum_name(kind, number).replace("_", " ")


def _parted(text: Text) -> tuple[Text, Text, Text]:
    """What stands before the next place for a value, the place, and what stands behind."""
    at = text.plain.index(_PLACE)
    before, place, rest = text.divide([at, at + 1])
    return before, place, rest


def _in_place_of(place: Text, value: object) -> Text:
    """The value in the style of its place; a Text keeps its own besides."""
    shown = value.copy() if isinstance(value, Text) else Text(visible(str(value), _NO_BOUND))
    shown.spans[:0] = [Span(0, len(shown), span.style) for span in place.spans]
    return shown
