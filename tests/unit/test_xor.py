"""The XOR mechanism costs what its ledger entry says, no more and hardly less; the papers' condition does not hold."""

from __future__ import annotations

import math
from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanism_scenes import (
    SURPRISE,
    Kept,
    Law,
    a_scope,
    a_silo,
    dearest,
    every_ballot,
    largest_delta,
    rows_together,
    surprise,
    votes_of,
)
from seeded_bits import SeededBits

from silo_agent.trainer.privacy.mechanisms.protocol import Sensitivity
from silo_agent.trainer.privacy.mechanisms.theta import (
    FlipTable,
    closed_form,
    flip_table,
    papers_condition,
    scaled_to,
)
from silo_agent.trainer.privacy.mechanisms.xor import (
    IndependentFlips,
    XorMechanism,
    calibrated_flip,
    flip_at,
)
from silo_agent.trainer.privacy.settings import SensitivitySettings, XorSettings
from wire.ballot import Encoding
from wire.errors import ConfigurationError
from wire.privacy.accounting import epsilon
from wire.privacy.events import Pure, RandomizedResponse

pytestmark = pytest.mark.slow

COUPLED = ((-1.2, 0.3, -0.4), (0.3, -0.8, 0.1), (-0.4, 0.1, -1.5))


def _one_hot(label: int, classes: int) -> tuple[int, ...]:
    return tuple(int(label == place) for place in range(classes))


def _flipped_rows(flip: float, classes: int) -> dict[int, Law]:
    """What each label (-1 abstaining) becomes, by the definition of the mechanism."""
    return {
        label: {
            row: math.prod(
                flip if bit != meant else 1 - flip
                for bit, meant in zip(row, _one_hot(label, classes), strict=True)
            )
            for row in product((0, 1), repeat=classes)
        }
        for label in range(-1, classes)
    }


def _table_rows(table: FlipTable) -> dict[int, Law]:
    total = int(table.weights.sum())
    return {
        label: {
            row: int(
                table.weights[
                    sum(
                        (bit ^ meant) << place
                        for place, (bit, meant) in enumerate(
                            zip(row, _one_hot(label, table.classes), strict=True)
                        )
                    )
                ]
            )
            / total
            for row in product((0, 1), repeat=table.classes)
        }
        for label in range(-1, table.classes)
    }


@pytest.mark.parametrize(
    ("rows", "classes", "changed"), [(2, 2, 1), (2, 2, 2), (3, 2, 2), (2, 3, 2)]
)
def test_flips_cost_the_pure_epsilon_they_claim_and_no_less(
    rows: int, classes: int, changed: int
) -> None:
    scope = a_scope(rows, classes, epsilon=1.5, delta=0.0)
    flip = calibrated_flip(scope, changed, 1)
    laws = {
        labels: rows_together(_flipped_rows(flip, classes), labels)
        for labels in every_ballot(rows, classes)
    }
    assert 0.99 * 1.5 <= dearest(laws, changed) <= 1.5


@given(st.floats(1e-6, 40))
def test_the_last_bit_of_a_flip_is_given_to_privacy(bit_epsilon: float) -> None:
    event = IndependentFlips(2, flip_at(bit_epsilon)).event(1)
    assert isinstance(event, RandomizedResponse)
    assert bit_epsilon * (1 - 1e-8) <= event.epsilon <= bit_epsilon


def test_flips_meet_epsilon_and_delta_together_and_hardly_better() -> None:
    scope = a_scope(2, 2, epsilon=1.0, delta=0.05)
    mechanism = XorMechanism(XorSettings(), scope)
    flip = mechanism.offer(a_silo((0, 1))).parameters["flip"]
    assert isinstance(flip, float)
    laws = {labels: rows_together(_flipped_rows(flip, 2), labels) for labels in every_ballot(2, 2)}
    assert largest_delta(laws, 2, 1.0) <= 0.05
    assert largest_delta(laws, 2, 0.99) > 0.05
    assert dearest(laws, 2) > 1.0, "δ must have bought something"


def test_a_given_flip_costs_what_enumeration_says() -> None:
    scope = a_scope(2, 3, delta=0.0)
    offer = XorMechanism(XorSettings(flip=0.2), scope).offer(a_silo((0, 1)))
    laws = {labels: rows_together(_flipped_rows(0.2, 3), labels) for labels in every_ballot(2, 3)}
    assert offer.declaration.epsilon == pytest.approx(dearest(laws, 2), rel=1e-9)
    (event,) = offer.events
    assert isinstance(event, RandomizedResponse)
    assert (event.buckets, event.count) == (2, 4)
    assert math.log(4) <= event.epsilon < math.log(4) + 1e-12
    assert not offer.declaration.estimate
    assert (offer.declaration.one_if_voted, offer.declaration.one_if_not) == (0.8, 0.2)


@pytest.mark.parametrize("labels", [(0, 1), (2, -1)])
def test_ballots_are_flipped_as_often_as_declared(labels: tuple[int, int]) -> None:
    mechanism = XorMechanism(XorSettings(flip=0.3), a_scope(2, 3))
    drawn = votes_of(mechanism, labels, SeededBits(1), 15_000)
    assert surprise(drawn, rows_together(_flipped_rows(0.3, 3), labels)) > SURPRISE


def test_the_numbers_of_the_design_hold() -> None:
    flip = calibrated_flip(a_scope(3000, 10, epsilon=0.1, delta=0.0), 3000, 1)
    assert 0.5 - flip == pytest.approx(4.2e-6, rel=0.01)
    offer = XorMechanism(XorSettings(flip=0.1), a_scope(3000, 10, delta=0.0)).offer(
        a_silo([0] * 3000)
    )
    assert offer.declaration.epsilon == pytest.approx(13_183, abs=1)


@pytest.mark.parametrize("rounds", [1, 3, 20])
def test_all_paid_rounds_together_stay_within_the_budget(rounds: int) -> None:
    scope = a_scope(400, 4, epsilon=2.0, rounds=rounds)
    mechanism = XorMechanism(XorSettings(), scope)
    offer = mechanism.offer(a_silo([0] * 400))
    spent = epsilon([*offer.events] * mechanism.paid_rounds, scope.delta)
    assert 1.99 < spent <= 2.0
    assert offer.declaration.epsilon == spent


def test_fewer_paid_rounds_mean_less_noise() -> None:
    scope = a_scope(400, 4, epsilon=2.0, rounds=20)
    all_paid = XorMechanism(XorSettings(), scope)
    two_paid = XorMechanism(XorSettings(paid_rounds=2), scope)
    assert (all_paid.paid_rounds, two_paid.paid_rounds) == (20, 2)
    assert XorMechanism(XorSettings(paid_rounds=50), scope).paid_rounds == 20
    silo = a_silo([0] * 400)
    assert two_paid.offer(silo).declaration.one_if_not < all_paid.offer(silo).declaration.one_if_not


def test_theta_costs_the_pure_epsilon_it_claims_and_no_less() -> None:
    table = flip_table(np.array(COUPLED))
    laws = {labels: rows_together(_table_rows(table), labels) for labels in every_ballot(2, 3)}
    event = table.event(2)
    assert isinstance(event, Pure)
    claimed = epsilon([event], 0.0)
    assert 0.99 * claimed <= dearest(laws, 2) <= claimed


def test_theta_is_drawn_as_it_is_defined() -> None:
    mechanism = XorMechanism(XorSettings(theta=COUPLED), a_scope(1, 3))
    patterns = np.array(list(product((0, 1), repeat=3)))
    weights = np.exp(np.einsum("xa,ab,xb->x", patterns, np.array(COUPLED), patterns))
    meant = np.array(_one_hot(1, 3))
    law = {
        tuple(int(bit) for bit in pattern ^ meant): float(weight)
        for pattern, weight in zip(patterns, weights / weights.sum(), strict=True)
    }
    drawn = votes_of(mechanism, (1,), SeededBits(2), 20_000)
    assert surprise(drawn, law) > SURPRISE


def test_a_table_is_drawn_by_its_integers_alone() -> None:
    table = FlipTable(np.array([1, 2, 1, 4]))
    drawn = Counter(tuple(int(bit) for bit in row) for row in table.draw(16_000, SeededBits(4)))
    law = {(0, 0): 1 / 8, (1, 0): 2 / 8, (0, 1): 1 / 8, (1, 1): 4 / 8}
    assert surprise(drawn, law) > SURPRISE


def test_theta_declares_the_mean_of_its_flip_rates() -> None:
    mechanism = XorMechanism(XorSettings(theta=COUPLED), a_scope(40, 3))
    silo = a_silo([0] * 40)
    offer = mechanism.offer(silo)
    flipped = np.zeros((40, 3))
    bits = SeededBits(3)
    for _ in range(500):
        ones = mechanism.vote(silo, bits).ones
        assert ones is not None
        flipped += ones ^ np.array(_one_hot(0, 3), dtype=np.bool_)
    rates = flipped.mean(axis=0) / 500
    assert rates == pytest.approx(offer.parameters["flip_rates"], abs=0.02)
    assert offer.declaration.one_if_not == pytest.approx(rates.mean(), abs=0.01)


def test_a_budget_scales_theta_to_what_it_affords() -> None:
    scope = a_scope(5, 3, epsilon=1.0, delta=1e-6, rounds=2)
    mechanism = XorMechanism(XorSettings(theta=COUPLED), scope)
    offer = mechanism.offer(a_silo([0] * 5))
    assert 0.99 < epsilon([*offer.events] * 2, 1e-6) <= 1.0


@pytest.mark.parametrize("allowed", [1e-6, 0.01, 1.0, 30.0])
def test_a_scaled_theta_never_exceeds_its_row(allowed: float) -> None:
    factor, table = scaled_to(np.array(COUPLED), allowed)
    assert 0.95 * allowed <= table.row_epsilon <= allowed
    assert factor > 0


def test_an_abstention_may_cost_more_than_a_change_of_class() -> None:
    # 00 and 11 are alike, 01 and 10 are alike: two classes look the same, an abstention does not.
    parity = np.array([[-1.0, 1.0], [1.0, -1.0]])
    table = flip_table(parity)
    assert table.row_epsilon == pytest.approx(1.0, abs=1e-9)
    laws = {labels: rows_together(_table_rows(table), labels) for labels in every_ballot(1, 2)}
    assert dearest(laws, 1) == pytest.approx(1.0, abs=1e-9)


def test_the_papers_condition_is_violated_threefold_at_ten_classes() -> None:
    theta = np.zeros((10, 10))
    theta[:2, :] = theta[:, :2] = -0.05
    claimed = papers_condition(theta, changed_bits=2)
    # By enumeration of all 1024 patterns, without the mechanism's own derivation of ε.
    patterns = np.array(list(product((0, 1), repeat=10)))
    chances = np.exp(np.einsum("xa,ab,xb->x", patterns, theta, patterns))
    chances = (chances / chances.sum()).reshape((2,) * 10)
    as_class_0 = np.flip(chances, axis=0)
    as_class_1 = np.flip(chances, axis=1)
    true = float(np.abs(np.log(as_class_0 / as_class_1)).max())
    assert true == pytest.approx(3 * claimed)
    assert flip_table(theta).row_epsilon == pytest.approx(true, abs=1e-9)
    assert closed_form(theta, 1) == pytest.approx(true)


def test_the_papers_condition_is_loose_for_independent_flips() -> None:
    theta = -0.7 * np.eye(10)
    assert flip_table(theta).row_epsilon == pytest.approx(2 * 0.7, abs=1e-9)
    assert papers_condition(theta, 2) == pytest.approx(2 * 0.7 * math.sqrt(10))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 5), st.data())
def test_the_closed_form_is_never_below_the_exact_epsilon(
    classes: int, data: st.DataObject
) -> None:
    entries = data.draw(
        st.lists(st.floats(-3, 3), min_size=classes * classes, max_size=classes * classes)
    )
    square = np.array(entries).reshape(classes, classes)
    theta = square + square.T
    assert flip_table(theta).row_epsilon <= closed_form(theta, 1) + 1e-6


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 4), st.integers(0, 2**32))
def test_the_exact_epsilon_is_that_of_enumeration(classes: int, seed: int) -> None:
    square = np.random.default_rng(seed).normal(size=(classes, classes))
    table = flip_table(square + square.T)
    laws = {labels: _table_rows(table)[labels[0]] for labels in every_ballot(1, classes)}
    assert table.row_epsilon == pytest.approx(dearest(laws, 1), abs=1e-9)


def test_sixteen_classes_are_served_and_every_pattern_stays_possible() -> None:
    table = flip_table(-8 * np.eye(16))
    assert table.weights.size == 1 << 16
    assert table.weights.min() >= 1
    assert math.isfinite(table.row_epsilon)
    assert table.draw(5, SeededBits(1)).shape == (5, 16)


def test_without_a_budget_or_a_flip_the_noise_is_left_open() -> None:
    with pytest.raises(ConfigurationError, match="how much noise"):
        XorMechanism(XorSettings(), a_scope(3, 2))


@pytest.mark.parametrize("theta", [((0.0, 1.0), (2.0, 0.0)), ((0.0, 1.0),), ((math.nan,),)])
def test_a_theta_that_is_no_symmetric_matrix_is_refused(
    theta: tuple[tuple[float, ...], ...],
) -> None:
    with pytest.raises(ConfigurationError, match="symmetric"):
        XorMechanism(XorSettings(theta=theta), a_scope(3, 2))


def test_only_one_hot_ballots_can_be_flipped() -> None:
    flips = XorSettings(flip=0.1)
    assert XorMechanism(flips, a_scope(3, 2)).misfit() == ""
    assert "one_hot" in XorMechanism(flips, a_scope(3, 2, encoding=Encoding.INDEX)).misfit()
    assert "3 classes" in XorMechanism(XorSettings(theta=COUPLED), a_scope(3, 4)).misfit()
    wide = tuple(tuple(row) for row in np.zeros((17, 17)).tolist())
    assert "16" in XorMechanism(XorSettings(theta=wide), a_scope(3, 17)).misfit()


def test_an_estimated_sensitivity_is_marked_and_priced_at_its_worst() -> None:
    def without(unit: int) -> np.ndarray:
        labels = np.zeros(50, dtype=np.int64)
        labels[: unit % 4] = 1
        return labels

    kept = Kept()
    silo = a_silo([0] * 50, without=without, kept=kept)
    chosen = XorSettings(sensitivity=SensitivitySettings(source=Sensitivity.EMPIRICAL))
    scope = a_scope(50, 2, epsilon=1.0, units=20)
    offer = XorMechanism(chosen, scope, SeededBits(1)).offer(silo)
    assert offer.sensitivity is Sensitivity.EMPIRICAL
    assert offer.declaration.estimate
    assert offer.parameters["changed_rows"] == 3
    assert offer.parameters["sensitivity"] == "empirical"
    worst = offer.parameters["worst_case_epsilon"]
    flip = offer.parameters["flip"]
    assert isinstance(worst, float)
    assert isinstance(flip, float)
    each = math.log((1 - flip) / flip)
    assert worst == pytest.approx(
        epsilon([RandomizedResponse(buckets=2, epsilon=each, count=100)], scope.delta)
    )
    assert worst > 3 * offer.declaration.epsilon
    # After a restart nothing is estimated again, and the ballot has the noise that was paid for.
    again = XorMechanism(chosen, scope, SeededBits(2))
    after = a_silo([0] * 50, kept=kept)
    assert again.offer(after).parameters == offer.parameters
    ones = again.vote(after, SeededBits(3)).ones
    assert ones is not None
    assert Counter(ones[:, 1].tolist())[True] < 50 * flip + 20


def test_a_worst_case_declares_no_estimate() -> None:
    offer = XorMechanism(XorSettings(), a_scope(30, 2, epsilon=1.0)).offer(a_silo([0] * 30))
    assert not offer.declaration.estimate
    assert offer.sensitivity is Sensitivity.WORST_CASE
    assert offer.parameters["changed_rows"] == 30
    assert "worst_case_epsilon" not in offer.parameters


@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize("delta", [1e-4, 0.02])
def test_flipped_bits_cost_their_exact_divergence_and_never_less(
    classes: int, delta: float
) -> None:
    flips = IndependentFlips(classes, 0.2)
    laws = {
        labels: rows_together(_flipped_rows(flips.flip, classes), labels)
        for labels in every_ballot(2, classes)
    }
    claimed = epsilon([flips.event(2)], delta)
    assert largest_delta(laws, 2, claimed) <= delta < largest_delta(laws, 2, 0.999 * claimed)
