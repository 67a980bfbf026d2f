"""The round engine: who may vote, when a round closes, when a task is done."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.round_engine import (
    Close,
    ClosedBy,
    Extend,
    Pause,
    Round,
    Wait,
    admit_ballot,
    decide,
    open_round,
    settled,
)
from wire.errors import NOT_A_PARTICIPANT, ROUND_CLOSED, ROUND_NOT_OPEN, Refusal
from wire.task.definition import RoundPolicy

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
POLICY = RoundPolicy(deadline=600, grace=30, quorum=2, max_extensions=1)
SILOS = ("essen", "lyon", "turin")


def opened(**changes: object) -> Round:
    return replace(open_round("t", 3, POLICY, SILOS, NOON), **changes)


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def test_a_fresh_round_waits_for_its_deadline() -> None:
    assert decide(opened(), POLICY, after(1)) == Wait(after(600))


def test_a_round_closes_as_soon_as_everyone_has_voted() -> None:
    current = opened(voted=frozenset(SILOS), quorum_at=after(5))
    assert decide(current, POLICY, after(6)) == Close(ClosedBy.EVERYONE)


def test_after_the_quorum_a_round_waits_for_the_grace_and_then_closes() -> None:
    current = opened(voted=frozenset(SILOS[:2]), quorum_at=after(100))
    assert decide(current, POLICY, after(129)) == Wait(after(130))
    assert decide(current, POLICY, after(130)) == Close(ClosedBy.GRACE)


def test_the_grace_never_outlasts_the_deadline() -> None:
    current = opened(voted=frozenset(SILOS[:2]), quorum_at=after(590))
    assert decide(current, POLICY, after(591)) == Wait(after(600))
    assert decide(current, POLICY, after(600)) == Close(ClosedBy.DEADLINE)


def test_below_the_quorum_the_deadline_is_extended_and_then_the_task_pauses() -> None:
    current = opened(voted=frozenset(SILOS[:1]))
    assert decide(current, POLICY, after(600)) == Extend(after(1200))
    extended = replace(current, extensions=1, closes_at=after(1200))
    decision = decide(extended, POLICY, after(1200))
    assert isinstance(decision, Pause)
    assert "1 of the 2 ballots it needs after 2 deadlines" in decision.reason


def test_without_extensions_the_first_missed_deadline_pauses_the_task() -> None:
    policy = POLICY.model_copy(update={"max_extensions": 0})
    decision = decide(opened(), policy, after(600))
    assert isinstance(decision, Pause)
    assert "0 of the 2 ballots it needs after 1 deadlines" in decision.reason


def test_everyone_is_not_enough_when_there_are_fewer_silos_than_the_quorum() -> None:
    lonely = opened(expected=frozenset({"essen"}), voted=frozenset({"essen"}))
    assert decide(lonely, POLICY, after(1)) == Wait(after(600))


def test_a_round_that_had_begun_to_close_goes_on_closing_for_the_same_reason() -> None:
    assert decide(opened(closing=ClosedBy.GRACE), POLICY, after(0)) == Close(ClosedBy.GRACE)


@pytest.mark.parametrize(
    ("current", "number", "silo", "fault"),
    [
        (opened(), 2, "essen", ROUND_CLOSED),
        (opened(closing=ClosedBy.GRACE), 3, "essen", ROUND_CLOSED),
        (None, 3, "essen", ROUND_CLOSED),
        (opened(), 4, "essen", ROUND_NOT_OPEN),
        (opened(), 3, "paris", NOT_A_PARTICIPANT),
    ],
)
def test_each_ballot_out_of_place_gets_its_own_refusal(
    current: Round | None, number: int, silo: str, fault: object
) -> None:
    with pytest.raises(Refusal) as refused:
        admit_ballot(current, "t", number, silo)
    assert refused.value.is_a(fault)


def test_an_expected_silo_may_vote_in_the_open_round() -> None:
    admit_ballot(opened(), "t", 3, "essen")


def test_a_task_settles_after_enough_quiet_rounds_but_never_on_its_first() -> None:
    policy = RoundPolicy(stop_churn=0.01, stop_patience=2)
    assert not settled(policy, 100, [100])
    assert not settled(policy, 100, [0, 1])
    assert not settled(policy, 100, [100, 2, 1])
    assert settled(policy, 100, [100, 1, 0])


def test_with_patience_one_the_second_round_may_be_the_last() -> None:
    policy = RoundPolicy(stop_churn=0.01, stop_patience=1)
    assert settled(policy, 100, [100, 1])
    assert not settled(policy, 100, [100, 2])


@pytest.mark.parametrize("changed", [[100, 0, 0, 0, 0], [0, 0, 0]])
def test_patience_zero_never_settles(changed: list[int]) -> None:
    assert not settled(RoundPolicy(stop_patience=0), 100, changed)


@given(
    seconds=st.floats(0, 2000),
    voters=st.sets(st.sampled_from(SILOS)),
    quorum_after=st.floats(0, 600),
)
def test_a_round_never_closes_below_its_quorum_and_always_says_when_to_look_again(
    seconds: float, voters: set[str], quorum_after: float
) -> None:
    reached = len(voters) >= POLICY.quorum
    current = opened(voted=frozenset(voters), quorum_at=after(quorum_after) if reached else None)
    decision = decide(current, POLICY, after(seconds))
    if isinstance(decision, Close):
        assert reached
    if isinstance(decision, Wait):
        assert decision.until > after(seconds)
