"""An explanation on paper: headings, paragraphs, and a place to sign."""

from __future__ import annotations

import textwrap
from pathlib import Path

from rich.console import Console

from silo_agent.trainer.explain.explain import Explanation

_WIDTH = 96


def page_text(page: Explanation, settings_file: Path) -> str:
    """The page as plain text, at most 96 characters wide."""
    unit = "patient" if page.unit == "patient" else "row"
    lines = [
        f"Privacy of the data set “{page.dataset}”",
        f"mechanism {page.mechanism}, unit of privacy: one {unit}",
    ]
    for section in page.sections:
        lines += ["", section.heading.upper()]
        several = len(section.paragraphs) > 1
        for paragraph in section.paragraphs:
            mark = "– " if several else ""
            lines += textwrap.wrap(
                mark + paragraph, _WIDTH, subsequent_indent=" " * len(mark), break_long_words=False
            )
    lines += [
        "",
        f"Settings: {settings_file}",
        f"SHA-256 of what is explained here: {page.fingerprint}",
        "",
        "",
        "Name ______________________________   Date ______________   Signature ______________________",
    ]
    return "\n".join(lines)


def print_explanation(page: Explanation, settings_file: Path, console: Console) -> None:
    """The page on a terminal or into a file."""
    console.print(page_text(page, settings_file), markup=False)
