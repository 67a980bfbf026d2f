"""CSV for a person's spreadsheet: no cell from outside is taken for a formula or steers a terminal."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Final

from wire.remote_text import visible

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")
_NUMBER: Final = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
# A spreadsheet's own limit; receipts and definitions stay whole below it.
_MOST_CHARACTERS: Final = 32_767


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows with the same keys, under a header line."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    if rows:
        writer.writerow([csv_cell(name) for name in rows[0]])
    writer.writerows([csv_cell(value) for value in row.values()] for row in rows)
    return buffer.getvalue()


def csv_cell(value: object) -> object:
    """A number as it is, also a written one; text with control characters spelled out, and marked as text if it looks like a formula.

    The mark is an apostrophe in front, which spreadsheets take for "this is text". White space before the sign does
    not make it harmless, for some programs trim it.
    """
    if value is None or isinstance(value, int | float):
        return value
    text = str(value)
    shown = visible(text, _MOST_CHARACTERS)
    looks_like_one = text.startswith(_FORMULA) or text.lstrip().startswith(_FORMULA)
    return f"'{shown}" if looks_like_one and not _NUMBER.fullmatch(text) else shown
