"""The pages for contributors name files that are there, and the drawing names every package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
EVERY_PAGE = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_ROOMS = ("coordinator", "silo_agent", "wire", "protos", "experiments", "tests", "docker", "helm")
_WRITTEN_BY_OPERATORS = "docker/secrets/"
_PATH = re.compile(rf"`((?:{'|'.join(_ROOMS)})/[\w./*-]*)`")


def missing(page: Path) -> list[str]:
    """Paths in code quotes that lead nowhere; `*` stands for any name."""
    return [
        path
        for path in _PATH.findall(page.read_text())
        if not path.startswith(_WRITTEN_BY_OPERATORS) and not list(ROOT.glob(path))
    ]


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_on_a_page_exists(page: Path) -> None:
    assert missing(page) == []


def test_a_path_that_is_gone_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("See `coordinator/desk.py` and `coordinator/server.py`.")
    assert missing(page) == ["coordinator/desk.py"]


def test_the_drawing_names_every_package() -> None:
    text = PAGES[0].read_text()
    drawing = text[text.index("```") : text.index("```", text.index("```") + 3)]
    for folder in ("coordinator", "silo_agent/trainer", "silo_agent/agent"):
        packages = {path.parent.name for path in (ROOT / folder).glob("*/__init__.py")}
        unnamed = {name for name in packages if not re.search(rf"\b{name}\b", drawing)}
        assert unnamed <= {"planner", "explain", "pretraining"}, unnamed
