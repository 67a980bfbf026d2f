"""Text that came from another machine, made fit to be shown: nothing in it steers a terminal or poses as ours.

Whatever is not printable (control characters, escape sequences, changes of writing direction, invisible characters,
line separators) is spelled out as an escape such as `\\x1b`, and the length is bounded.
"""

from __future__ import annotations

import re
from typing import Final

MOST_CHARACTERS: Final = 1000
"""Of one value on a terminal or in a log; as many as a refusal's sentence may have on the wire."""

_WORD = re.compile(r"[\w.:@+-]{1,80}|[\d:T +.-]{1,40}")


def visible(text: str, most: int = MOST_CHARACTERS, *, lines: bool = False) -> str:
    """`text` with everything that is not printable spelled out, cut after `most` characters.

    With `lines` its line feeds stay, for texts of several lines that we wrote ourselves.
    """
    kept = text if len(text) <= most else text[:most]
    spelled = "".join(
        each if each.isprintable() or (lines and each == "\n") else _spelled(each) for each in kept
    )
    return spelled if len(text) <= most else f"{spelled}… ({len(text)} characters)"


def visible_json(text: str) -> str:
    """JSON with the same meaning, in which everything that is not printable is written as `\\uXXXX`.

    A JSON text has such characters only inside its strings, apart from the line feeds between its lines.
    """
    return "".join(each if each.isprintable() or each == "\n" else _escaped(each) for each in text)


def quoted(speaker: str, text: str) -> str:
    """Another machine's words, marked as such: `The coordinator says: "…"`."""
    return f'{speaker} says: "{visible(text)}"'


def is_plain_word(text: str) -> bool:
    """True for a name, a digest, a number or a moment: it can stand in a sentence of ours without adding one."""
    return _WORD.fullmatch(text) is not None


def _spelled(character: str) -> str:
    return ascii(character)[1:-1]


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))
