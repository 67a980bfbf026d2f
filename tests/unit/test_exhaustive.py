"""A new member of a closed set is found by type checking: the wire decides about every member by name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "wire"
MODULES = sorted(path for path in ROOT.rglob("*.py") if "consilium" not in path.parts[-3:])


def catch_alls(source: str) -> list[int]:
    """Lines of `case _:`, which takes a member nobody thought of for one that somebody did."""
    return [
        case.pattern.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Match)
        for case in node.cases
        if isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None
    ]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_match_of_the_wire_has_a_catch_all(path: Path) -> None:
    assert catch_alls(path.read_text()) == []


def test_a_catch_all_would_be_found() -> None:
    assert catch_alls("match x:\n    case 1:\n        pass\n    case _:\n        pass\n") == [4]
