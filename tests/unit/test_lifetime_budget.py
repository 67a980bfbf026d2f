"""A lifetime budget holds when tasks are thought of in sight of earlier ballots, and one planned task may use all of it."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from ledger_scenes import TASK, at_most, ballot, opened

from silo_agent.trainer.privacy.budget import (
    Account,
    Accounting,
    Spending,
    added_up,
    cost,
    exceeded,
    filter_cost,
    payable,
)
from silo_agent.trainer.privacy.ledger.release import Release
from wire.privacy.events import Gaussian, Pure, RandomizedResponse

OTHER = "bb" * 32
DELTA = 1e-5
HEAD = Gaussian(sensitivity=0.268, scale=1.0)
"""ε = 1 at δ = 10⁻⁵."""


def _responses(*bought: tuple[float, int]) -> Spending:
    return added_up(
        RandomizedResponse(buckets=2, epsilon=each, count=times) for each, times in bought if times
    )


def _worst_delta(plan: Spending, menu: tuple[float, ...], limit: float, delta: float) -> float:
    """δ the most cunning analyst reaches against the ledger's own rule, by dynamic programming; exact."""
    budget = at_most(lifetime=limit, delta=delta)

    @cache
    def allowed(before: tuple[int, ...], place: int) -> bool:
        spent = _responses(*zip(menu, before, strict=True))
        account = Account(spent, plan if spent else None, frozenset({TASK} if spent else ()))
        new = _responses((menu[place], 1))
        return exceeded(budget, new, Account(), account, TASK, plan) is None

    @cache
    def best(bought: tuple[int, ...], net: tuple[int, ...]) -> float:
        loss = math.fsum(each * answers for each, answers in zip(menu, net, strict=True))
        most = max(0.0, 1 - math.exp(limit - loss))
        for place, each in enumerate(menu):
            if allowed(bought, place):
                truth = 1 / (1 + math.exp(-each))
                more = _changed(bought, place, 1)
                up, down = _changed(net, place, 1), _changed(net, place, -1)
                most = max(most, truth * best(more, up) + (1 - truth) * best(more, down))
        return most

    nothing = (0,) * len(menu)
    return best(nothing, nothing)


def _changed(counts: tuple[int, ...], place: int, by: int) -> tuple[int, ...]:
    return (*counts[:place], counts[place] + by, *counts[place + 1 :])


@pytest.mark.parametrize(("first", "times"), [(0.1, 30), (0.1, 4), (1.0, 1), (1.0, 3)])
def test_no_analyst_gets_more_out_of_a_lifetime_than_its_delta(first: float, times: int) -> None:
    plan = _responses((first, times))
    assert _worst_delta(plan, (0.1, 1.0), 1.5, 0.05) <= 0.05


def _paid(number: int, task: str = TASK, plan: tuple[Gaussian, ...] = (HEAD,)) -> Release:
    return ballot(
        number, events=(HEAD,), plan=plan, task_digest=task, ballot_digest=f"{number:064x}"
    )


def test_one_planned_task_may_use_a_whole_lifetime(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    budget = at_most(task=1.0, lifetime=1.0, delta=DELTA)
    assert filter_cost(added_up((HEAD,)), DELTA) > 1.0 >= cost(added_up((HEAD,)), DELTA)
    ledger.spend(_paid(1), budget)
    over = ledger.would_exceed("private", OTHER, (Pure(epsilon=1e-6),), budget)
    assert over is not None
    assert (over.whose, over.accounting) == ("lifetime", Accounting.ADAPTIVE)
    assert "by the privacy filter" in over.sentence


def test_a_planned_task_that_only_the_smaller_number_can_pay_keeps_all_others_out(
    tmp_path: Path,
) -> None:
    """Else an analyst could go on with the plan, or leave it, as the answers suggest."""
    ledger = opened(tmp_path)
    plan = (HEAD,) * 12
    budget = at_most(lifetime=cost(added_up(plan), DELTA), delta=DELTA)
    ledger.spend(_paid(1, plan=plan), budget)
    over = ledger.would_exceed("private", OTHER, (HEAD,), budget, (Pure(epsilon=0.01),))
    assert over is None, "this event is part of the plan, whoever asks for it"
    assert ledger.would_exceed("private", OTHER, (Pure(epsilon=0.01),), budget) is not None
    for number in range(2, 13):
        ledger.spend(_paid(number, plan=plan), budget)
    assert ledger.would_exceed("private", TASK, (HEAD,), budget) is not None


def test_tasks_are_added_up_by_the_filter_until_it_stops_them(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    budget = at_most(task=1.0, lifetime=4.0, delta=DELTA)
    paid = 0
    while ledger.would_exceed("private", f"{paid:064x}", (HEAD,), budget, (HEAD,)) is None:
        paid += 1
        ledger.spend(_paid(paid, task=f"{paid - 1:064x}"), budget)
    assert paid == 11
    assert ledger.spent("private", DELTA) == filter_cost(Counter({HEAD: 11}), DELTA)
    assert ledger.spent("private", DELTA, f"{0:064x}") == cost(Counter({HEAD: 1}), DELTA)


def test_noise_changed_in_the_middle_of_a_task_is_counted_by_the_filter(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    louder = HEAD.model_copy(update={"scale": 3.0})
    budget = at_most(task=2.0, delta=DELTA)
    ledger.spend(_paid(1), budget)
    ledger.spend(ballot(2, events=(louder,), plan=(louder,)), budget)
    spent = ledger.spent("private", DELTA, TASK)
    assert spent == filter_cost(Counter({HEAD: 1, louder: 1}), DELTA)


def test_entries_of_an_earlier_version_keep_their_meaning(tmp_path: Path) -> None:
    old = ballot(1, events=(HEAD,)).model_dump(mode="json")
    for added in ("plan", "same_as"):
        del old[added]
    assert Release.model_validate(old) == ballot(1, events=(HEAD,))
    ledger = opened(tmp_path)
    budget = at_most(task=1.5, lifetime=1.5, delta=DELTA)
    ledger.spend(Release.model_validate(old), budget)
    assert ledger.spent("private", DELTA) == cost(Counter({HEAD: 1}), DELTA)
    # The task it belongs to goes on by the number it began with.
    ledger.spend(ballot(2, events=(HEAD,), plan=(HEAD, HEAD)), budget)
    assert ledger.spent("private", DELTA) == cost(Counter({HEAD: 2}), DELTA)


def test_a_plan_ends_where_the_budget_of_its_task_does() -> None:
    events = lambda ballots: (HEAD,) * ballots  # noqa: E731
    assert payable(events, 20, None, DELTA) == 20
    assert payable(events, 20, 1.0, DELTA) == 1
    assert payable(events, 20, 4.0, DELTA) == 11
    assert payable(events, 5, 4.0, DELTA) == 5
    assert payable(events, 5, 0.5, DELTA) == 0
