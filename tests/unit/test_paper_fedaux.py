"""FEDAUX's table: the same ballots counted with and without certainties, and a student of either consensus."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from experiments.data import Dataset
from experiments.papers import fedaux
from experiments.papers.fedaux import Cell, Result
from silo_agent.trainer.models.protocol import Labelled

pytestmark = pytest.mark.slow

CELL = Cell("corners", 0.01, 1e6, 100, 500, 200, 0)


@pytest.fixture
def corners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten classes, each around a corner of its own in 20 dimensions."""
    draw = np.random.default_rng(3)
    labels = draw.integers(0, 10, 4000)
    middle = 2 * draw.normal(size=(10, 20))
    rows = Labelled(middle[labels] + draw.normal(size=(4000, 20)), labels)
    dataset = Dataset("corners", rows, 10)
    monkeypatch.setattr(fedaux, "load_once", lambda name, folder: dataset)


@pytest.mark.usefixtures("corners")
class TestMeasure:
    def test_certainties_tell_whom_to_believe_where_silos_share_no_class(self) -> None:
        found = fedaux.measure(CELL, None)
        assert found.weighted > found.uniform + 0.2
        assert found.weighted_consensus > found.uniform_consensus + 0.2

    def test_certainties_change_nothing_much_where_silos_are_alike(self) -> None:
        found = fedaux.measure(replace(CELL, alpha=100.0), None)
        assert found.uniform > 0.9
        assert found.weighted == pytest.approx(found.uniform, abs=0.05)

    def test_certainties_of_a_tiny_budget_are_noise(self) -> None:
        clear, noisy = (
            fedaux.measure(replace(CELL, certainty=epsilon), None) for epsilon in (1e6, 1e-4)
        )
        assert noisy.weighted < clear.weighted - 0.1
        # Equal weights look at labels only, which have no noise.
        assert noisy.uniform == clear.uniform


class TestLines:
    def test_a_gain_is_judged_apart_a_parity_together_and_no_noise_not_at_all(self) -> None:
        found = Result(uniform=0.5, weighted=0.65, uniform_consensus=0.4, weighted_consensus=0.6)
        results = dict.fromkeys(fedaux.cells(1, quick=False), found)
        lines = {line.where[1:]: line for line in fedaux.lines(results)}
        assert {where: line.least for where, line in lines.items()} == {
            ("α = 0.01", "ε = 0.1"): 0.10,
            ("α = 0.01", "ε = 1"): 0.10,
            ("α = 0.01", "hardly any noise"): None,
            ("α = 100", "ε = 0.1"): -0.01,
            ("α = 100", "ε = 1"): -0.01,
            ("α = 100", "hardly any noise"): None,
        }
        line = lines[("α = 0.01", "ε = 0.1")]
        assert line.ours == pytest.approx((0.15,))
        assert [values[0] for values in line.beside.values()] == [0.5, 0.65, 0.4, 0.6]
