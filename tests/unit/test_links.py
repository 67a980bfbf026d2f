"""Every link between the pages leads somewhere: the file is there, and so is the heading."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.*?) *$", re.MULTILINE)


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors GitHub makes of a page's headings."""
    found: set[str] = set()
    for words in _HEADING.findall(_FENCED.sub("", page.read_text())):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", words).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = 0
        while (numbered := f"{anchor}-{number}" if number else anchor) in found:
            number += 1
        found.add(numbered)
    return frozenset(found)


def dead_links(page: Path) -> list[str]:
    """The links of a page that lead nowhere in this repository; other sites are not asked."""
    text = _CODE.sub("", _FENCED.sub("", page.read_text()))
    dead = []
    for link in _LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    return dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert dead_links(page) == []


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {link.partition("#")[0] for link in _LINK.findall(index.read_text())}
    pages = {path.name for path in index.parent.glob("*.md")} - {index.name}
    assert pages <= linked


def test_a_dead_link_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Two words & more\n\n## Again\n\n## Again\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) [b](other.md#two-words--more) [c](other.md#again-1) [d](https://example.org)\n"
        "[e](gone.md) [f](other.md#again-2) [g](#nowhere)\n`[h](code.md)`\n```\n[i](fenced.md)\n```\n"
    )
    assert dead_links(page) == ["gone.md", "other.md#again-2", "#nowhere"]
