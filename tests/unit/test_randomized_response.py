"""Randomised response costs what its ledger entry says, whichever way it answers; and `none` costs everything."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from mechanism_scenes import (
    SURPRISE,
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

from silo_agent.trainer.privacy.mechanisms.none import NoMechanism
from silo_agent.trainer.privacy.mechanisms.protocol import Sensitivity
from silo_agent.trainer.privacy.mechanisms.randomized_response import (
    Answer,
    RandomizedResponseMechanism,
    Response,
    calibrated_response,
    response,
)
from silo_agent.trainer.privacy.settings import RandomizedResponseSettings
from wire.ballot import Encoding, unpack
from wire.errors import ConfigurationError
from wire.privacy.accounting import epsilon
from wire.privacy.events import RandomizedResponse, UnaryResponse, Unprotected

pytestmark = pytest.mark.slow

KINDS = tuple(Answer)


def _row_laws(answers: Response) -> dict[int, Law]:
    """What each label (-1 abstaining) becomes, from the two probabilities in use."""
    classes = answers.classes
    high, low = answers.one_if_voted, answers.one_if_not
    if answers.kind is Answer.UNARY:
        return {
            label: {
                row: math.prod(
                    (high if place == label else low)
                    if bit
                    else 1 - (high if place == label else low)
                    for place, bit in enumerate(row)
                )
                for row in product((0, 1), repeat=classes)
            }
            for label in range(-1, classes)
        }
    laws: dict[int, Law] = {
        label: {
            (said,): high if said == label else (1 - high) / (classes - 1)
            for said in range(classes)
        }
        for label in range(classes)
    }
    laws[-1] = {
        (said,): sum(laws[label][said,] for label in range(classes)) / classes
        for said in range(classes)
    }
    return laws


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "classes"), [(1, 4), (2, 2), (2, 3), (3, 2)])
def test_answers_cost_the_pure_epsilon_they_claim_and_no_less(
    kind: Answer, rows: int, classes: int
) -> None:
    answers = response(kind, classes, 0.8)
    laws = {
        labels: rows_together(_row_laws(answers), labels) for labels in every_ballot(rows, classes)
    }
    claimed = epsilon([answers.event(rows)], 0.0)
    assert claimed <= 0.8 * rows
    assert 0.99 * 0.8 * rows <= dearest(laws, rows) <= claimed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row_epsilon", [0.3, 0.69, 0.7, 1.2])
@pytest.mark.parametrize(("rows", "classes"), [(3, 2), (2, 3)])
def test_answers_meet_epsilon_and_delta_together(
    kind: Answer, row_epsilon: float, rows: int, classes: int
) -> None:
    answers = response(kind, classes, row_epsilon)
    laws = {
        labels: rows_together(_row_laws(answers), labels) for labels in every_ballot(rows, classes)
    }
    for delta in (0.02, 0.1):
        claimed = epsilon([answers.event(rows)], delta)
        assert largest_delta(laws, rows, claimed) <= delta


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_k_ary_answers_are_priced_tightly_under_delta(rows: int) -> None:
    answers = response(Answer.K_ARY, 3, 0.9)
    laws = {labels: rows_together(_row_laws(answers), labels) for labels in every_ballot(rows, 3)}
    claimed = epsilon([answers.event(rows)], 0.02)
    assert largest_delta(laws, rows, 0.99 * claimed) > 0.02


@pytest.mark.parametrize("row_epsilon", [0.1, 0.4, 0.68, 0.69314, 0.95, 1.09, 1.7])
@pytest.mark.parametrize(("rows", "classes"), [(1, 3), (2, 2), (3, 2)])
@pytest.mark.parametrize("delta", [1e-5, 1e-3, 0.02, 0.1])
def test_unary_answers_cost_their_exact_divergence_and_never_less(
    row_epsilon: float, rows: int, classes: int, delta: float
) -> None:
    answers = response(Answer.UNARY, classes, row_epsilon)
    laws = {
        labels: rows_together(_row_laws(answers), labels) for labels in every_ballot(rows, classes)
    }
    claimed = epsilon([answers.event(rows)], delta)
    assert largest_delta(laws, rows, claimed) <= delta
    if claimed > 0.01:
        assert largest_delta(laws, rows, 0.999 * claimed) > delta


def test_an_abstention_in_unary_costs_less_than_another_label() -> None:
    answers = response(Answer.UNARY, 3, 1.2)
    laws = {labels: rows_together(_row_laws(answers), labels) for labels in every_ballot(1, 3)}
    to_nothing = {labels: laws[labels] for labels in ((-1,), (0,))}
    for cost in (0.2, 0.4, 0.8):
        assert largest_delta(to_nothing, 1, cost) < largest_delta(laws, 1, cost)


def test_many_unary_answers_cost_an_eighth_less_than_whole_buckets_did() -> None:
    each, rows = math.log(1.98), 500
    before = epsilon([RandomizedResponse(buckets=4, epsilon=each, count=rows)], 1e-5)
    now = epsilon([UnaryResponse(epsilon=each, count=rows)], 1e-5)
    assert 0.86 < now / before < 0.88


def test_unary_answers_agree_with_buckets_where_these_are_whole() -> None:
    # e^ε + 3 = 5 buckets lose exactly what a row of bits does.
    for rows in (1, 7, 400):
        bits = epsilon([UnaryResponse(epsilon=math.log(2), count=rows)], 1e-5)
        buckets = epsilon([RandomizedResponse(buckets=5, epsilon=math.log(2), count=rows)], 1e-5)
        assert bits == pytest.approx(buckets, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("labels", [(0, 2), (1, -1)])
def test_answers_are_drawn_as_often_as_declared(kind: Answer, labels: tuple[int, int]) -> None:
    answers = response(kind, 3, 1.1)

    class Answering(RandomizedResponseMechanism):
        def _response(self) -> Response:
            return answers

    mechanism = Answering(RandomizedResponseSettings(row_epsilon=1.1), a_scope(2, 3))
    drawn = votes_of(mechanism, labels, SeededBits(1), 12_000)
    assert surprise(drawn, rows_together(_row_laws(answers), labels)) > SURPRISE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row_epsilon", [1e-6, 0.01, 1.0, 8.0, 30.0])
@pytest.mark.parametrize("classes", [2, 10, 100])
def test_no_answer_costs_more_than_it_was_given(
    kind: Answer, row_epsilon: float, classes: int
) -> None:
    answers = response(kind, classes, row_epsilon)
    assert 0.999 * row_epsilon < answers.row_epsilon <= row_epsilon


@pytest.mark.parametrize("classes", [2, 7, 8, 9, 40])
def test_at_a_given_row_epsilon_the_rule_of_wang_decides(classes: int) -> None:
    row_epsilon = math.log(2.0)  # 3e^ε + 2 = 8
    settings = RandomizedResponseSettings(row_epsilon=row_epsilon)
    offer = RandomizedResponseMechanism(settings, a_scope(5, classes)).offer(a_silo([0] * 5))
    if classes != 8:
        assert offer.parameters["kind"] == ("k_ary" if classes < 8 else "unary")


@pytest.mark.parametrize("encoding", [Encoding.INDEX, Encoding.SCORED])
def test_only_one_hot_ballots_are_answered_in_unary(encoding: Encoding) -> None:
    scope = a_scope(1, 40, epsilon=0.1, encoding=encoding)
    assert calibrated_response(scope, 1).kind is Answer.K_ARY
    assert calibrated_response(a_scope(1, 40, epsilon=0.1), 1).kind is Answer.UNARY


@pytest.mark.parametrize(
    ("rows", "classes", "paid"), [(1, 2, 1), (300, 10, 5), (2000, 3, 20), (2, 40, 1)]
)
def test_all_paid_rounds_together_stay_within_the_budget(
    rows: int, classes: int, paid: int
) -> None:
    scope = a_scope(rows, classes, epsilon=2.0, rounds=30)
    mechanism = RandomizedResponseMechanism(RandomizedResponseSettings(paid_rounds=paid), scope)
    offer = mechanism.offer(a_silo([0] * rows))
    spent = epsilon([*offer.events] * paid, scope.delta)
    assert 0.98 * 2.0 < spent <= 2.0
    assert offer.declaration.epsilon == spent
    assert offer.sensitivity is Sensitivity.WORST_CASE
    assert not offer.declaration.estimate


def test_the_chosen_answer_is_the_more_accurate_of_the_two() -> None:
    for rows, classes, budget in [(3, 30, 0.3), (500, 30, 1.0), (10, 10, 8.0)]:
        scope = a_scope(rows, classes, epsilon=budget)
        chosen = calibrated_response(scope, 1)
        only_k_ary = calibrated_response(
            a_scope(rows, classes, epsilon=budget, encoding=Encoding.INDEX), 1
        )
        assert chosen.variance <= only_k_ary.variance


def test_a_ballot_in_any_encoding_can_be_packed() -> None:
    settings = RandomizedResponseSettings(row_epsilon=3.0)
    for encoding in Encoding:
        scope = a_scope(64, 3, encoding=encoding)
        vote = RandomizedResponseMechanism(settings, scope).vote(a_silo([1] * 64), SeededBits(1))
        assert vote.labels is not None
        labels = unpack(vote.packed(scope.shape), scope.shape)
        assert np.count_nonzero(labels == 1) > 40
        assert labels.min() >= 0


def test_an_abstaining_learner_answers_like_any_other() -> None:
    answers = response(Answer.K_ARY, 4, 2.0)
    labels = answers.vote(np.full(8000, -1), SeededBits(2)).labels
    assert labels is not None
    assert np.bincount(labels, minlength=4).min() > 1800


def test_without_a_budget_or_a_row_epsilon_the_noise_is_left_open() -> None:
    with pytest.raises(ConfigurationError, match="how much noise"):
        RandomizedResponseMechanism(RandomizedResponseSettings(), a_scope(3, 2))


def test_one_class_leaves_nothing_to_answer() -> None:
    settings = RandomizedResponseSettings(row_epsilon=1.0)
    assert "two classes" in RandomizedResponseMechanism(settings, a_scope(3, 1)).misfit()
    assert RandomizedResponseMechanism(settings, a_scope(3, 2)).misfit() == ""


def test_no_mechanism_says_that_it_has_no_epsilon() -> None:
    mechanism = NoMechanism(a_scope(3, 2, rounds=7))
    offer = mechanism.offer(a_silo((0, 1, -1)))
    assert offer.events == (Unprotected(),)
    assert math.isinf(epsilon(offer.events, 1e-5))
    assert math.isinf(offer.declaration.epsilon)
    assert mechanism.paid_rounds == 7
    assert mechanism.misfit() == ""
    labels = mechanism.vote(a_silo((0, 1, -1)), SeededBits(1)).labels
    assert labels is not None
    assert labels.tolist() == [0, 1, -1]
