"""The states of a member: every step from every state, and what no sequence of steps may do."""

from __future__ import annotations

from itertools import product
from typing import Final

import pytest

from coordinator.store.member_states import TRANSITIONS, Refused, State, Step
from coordinator.store.records import MemberStatus

STATES: Final[list[State]] = [None, *MemberStatus]
INVITED, ACTIVE = MemberStatus.INVITED, MemberStatus.ACTIVE
SUSPENDED, REVOKED = MemberStatus.SUSPENDED, MemberStatus.REVOKED


def test_every_step_is_answered_in_every_state() -> None:
    assert set(TRANSITIONS) == set(Step)
    assert {step: set(row) for step, row in TRANSITIONS.items()} == {
        step: set(STATES) for step in Step
    }


@pytest.mark.parametrize(("step", "state"), list(product(Step, STATES)))
def test_whoever_is_shut_out_comes_back_only_by_somebodys_decision(
    step: Step, state: State
) -> None:
    reached = TRANSITIONS[step][state]
    resumed = step in (Step.RESUME, Step.RESUME_INVITED, Step.READMIT)
    if state is SUSPENDED and not resumed:
        assert reached in (SUSPENDED, REVOKED) or isinstance(reached, Refused)
    if state is REVOKED and step is not Step.READMIT:
        assert reached in (REVOKED, INVITED) or isinstance(reached, Refused)
        assert (reached is INVITED) == (step in (Step.INVITE, Step.INVITE_AGAIN))


@pytest.mark.parametrize("state", STATES)
def test_a_token_makes_active_only_who_is_invited(state: State) -> None:
    assert (TRANSITIONS[Step.JOIN][state] is ACTIVE) == (state is INVITED)


@pytest.mark.parametrize("state", STATES)
def test_shutting_out_works_from_everywhere_but_nowhere(state: State) -> None:
    assert TRANSITIONS[Step.REVOKE][state] is (Refused.UNKNOWN if state is None else REVOKED)


@pytest.mark.parametrize("step", Step)
def test_nobody_appears_out_of_nothing_but_by_an_invitation(step: Step) -> None:
    appears = step in (Step.INVITE, Step.INVITE_AGAIN, Step.READMIT)
    assert isinstance(TRANSITIONS[step][None], MemberStatus) == appears
