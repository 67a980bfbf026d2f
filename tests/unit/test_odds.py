"""What an ε means in odds is computed, and docs/privacy.md shows what the command says."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from silo_agent.trainer.cli.privacy import privacy
from silo_agent.trainer.explain.odds import Odds

PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 8.0])
@pytest.mark.parametrize("before", [0.001, 0.01, 0.5, 0.9])
def test_odds_move_by_the_factor_and_no_further(epsilon: float, before: float) -> None:
    after = Odds(epsilon, 0.0).sure(before)
    moved = (after / (1 - after)) / (before / (1 - before))
    assert moved == pytest.approx(math.exp(epsilon), rel=1e-9)


def test_the_page_shows_what_the_command_says() -> None:
    told = CliRunner().invoke(privacy, ["odds"])
    assert told.exit_code == 0
    assert told.output.strip() in PAGE.read_text("utf-8")
    assert "| 8 | 2,981 |" in told.output


def test_the_page_begins_with_what_an_officer_must_know_first() -> None:
    top = PAGE.read_text("utf-8").split("## The words")[0]
    for words in (
        "The default is no noise",
        "Whom each sentence is about",
        "What ε means",
        "A refusal is a release",
        "Erasure",
        "For a DPIA",
    ):
        assert words in top
