"""The experiment on certainties: the same ballots counted twice, and a table that says what was gained."""

from __future__ import annotations

import pytest

from experiments import certainty
from experiments.certainty import Cell, Result

pytestmark = pytest.mark.slow


def test_certain_votes_beat_equal_ones_where_silos_share_hardly_a_class() -> None:
    found = certainty.measure(Cell("digits", 60, 0.01, 100), None)
    assert found.no_noise > found.uniform + 0.1
    assert abs(found.eps_10 - found.no_noise) < 0.1


def test_the_page_has_a_line_per_setting_with_gains() -> None:
    results = {
        Cell("digits", 94, 0.01, seed): Result(0.2, 0.2, 0.4, 0.6, 0.6 + seed / 10)
        for seed in (0, 1)
    }
    *_, line = certainty.page(results).strip().splitlines()
    assert "| digits | 0.01 | 94 | 0.200 | 0.200 (+0.000 ± 0.000) |" in line
    assert "0.650 (+0.450 ± 0.050)" in line


def test_every_size_is_measured_with_silos_that_differ_and_with_silos_that_are_alike() -> None:
    cells = certainty.cells(("digits", "mnist"), 2)
    assert len(set(cells)) == len(cells) == 2 * 2 * (1 + 4)
    assert {cell.alpha for cell in cells} == {0.01, 100.0}
