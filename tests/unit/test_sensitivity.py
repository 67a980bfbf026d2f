"""How many labels a patient can change: proved, or marked as an estimate."""

from __future__ import annotations

import numpy as np
import pytest
from mechanism_scenes import Kept, a_scope, a_silo
from scipy import stats
from seeded_bits import SeededBits

from silo_agent.trainer.models.protocol import Labels
from silo_agent.trainer.privacy.mechanisms.protocol import Sensitivity
from silo_agent.trainer.privacy.sensitivity import (
    changed_rows,
    empirical,
    stability_bound,
    worst_case,
)
from silo_agent.trainer.privacy.settings import SensitivitySettings

pytestmark = pytest.mark.slow


class LeftOut:
    """A learner whose labels change in as many places as the number of the unit that is missing."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.units: list[int] = []

    def __call__(self, unit: int) -> Labels:
        self.units.append(unit)
        labels = np.zeros(self.rows, dtype=np.int64)
        labels[:unit] = 1
        return labels


def test_in_the_worst_case_every_label_changes() -> None:
    found = worst_case(370)
    assert (found.count, found.source) == (370, Sensitivity.WORST_CASE)
    assert not found.source.estimate


def test_the_papers_bound_is_theirs_and_an_estimate() -> None:
    # n=1000, ε(n)=0.01, P=Φ⁻¹(0.95)=1.645: 10 + 1.645·√9.9 + 0.902 = 16.08
    found = stability_bound(1000, 0.01, 0.95)
    assert found.count == 17
    assert found.source.estimate


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
def test_the_papers_bound_covers_the_binomial_it_is_about(confidence: float) -> None:
    quantile = stats.binom.ppf(confidence, 2000, 0.03)
    assert quantile <= stability_bound(2000, 0.03, confidence).count <= 1.1 * quantile + 2


def test_no_bound_exceeds_the_public_set_or_falls_to_nothing() -> None:
    assert stability_bound(10, 0.9, 0.999).count == 10
    assert stability_bound(10, 1e-9, 0.5).count == 1


def test_the_largest_change_among_the_tried_units_is_found() -> None:
    learner = LeftOut(30)
    found = empirical(a_silo([0] * 30, without=learner, units=12), 100, SeededBits(1))
    assert found.count == 11
    assert found.source is Sensitivity.EMPIRICAL
    assert sorted(learner.units) == list(range(12))


def test_units_are_drawn_at_random_and_only_as_many_as_asked() -> None:
    first, second = LeftOut(30), LeftOut(30)
    empirical(a_silo([0] * 30, without=first, units=25), 5, SeededBits(1))
    empirical(a_silo([0] * 30, without=second, units=25), 5, SeededBits(2))
    assert len(set(first.units)) == len(set(second.units)) == 5
    assert first.units != second.units


def test_a_change_of_nothing_is_taken_for_one() -> None:
    found = empirical(
        a_silo([0] * 5, without=lambda unit: np.zeros(5, dtype=np.int64), units=8),
        8,
        SeededBits(1),
    )
    assert found.count == 1


def test_an_estimate_is_made_once_a_task() -> None:
    kept, learner = Kept(), LeftOut(30)
    first = empirical(a_silo([0] * 30, without=learner, kept=kept, units=12), 4, SeededBits(1))
    again = empirical(a_silo([1] * 30, kept=kept, units=12), 4, SeededBits(2))
    assert again == first
    assert len(learner.units) == 4


def test_an_estimate_with_other_samples_is_made_anew() -> None:
    kept, learner = Kept(), LeftOut(30)
    silo = a_silo([0] * 30, without=learner, kept=kept, units=12)
    empirical(silo, 4, SeededBits(1))
    assert empirical(silo, 12, SeededBits(1)).count == 11


def test_settings_choose_the_source() -> None:
    scope = a_scope(40, 2, units=6)
    silo = a_silo([0] * 40, without=LeftOut(40), units=6)
    bits = SeededBits(1)
    assert changed_rows(SensitivitySettings(), scope, silo, bits) == worst_case(40)
    bound = SensitivitySettings(source=Sensitivity.STABILITY_BOUND, stability=0.05, confidence=0.9)
    assert changed_rows(bound, scope, silo, bits) == stability_bound(40, 0.05, 0.9)
    tried = SensitivitySettings(source=Sensitivity.EMPIRICAL, samples=6)
    assert changed_rows(tried, scope, silo, bits).count == 5
