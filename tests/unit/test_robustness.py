"""A few hostile silos: STAPLE holds where the majority gives way, and loses no more than the hostile silos' own knowledge."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from experiments import robustness
from experiments.robustness import SETTINGS, Attack, Cell, Setting, attack, measure, summary

pytestmark = pytest.mark.slow

ALONE = (Attack.RANDOM, Attack.CONSTANT, Attack.FLIPPED)


@cache
def means(setting: Setting, kind: Attack, seeds: int) -> dict[str, float]:
    number = SETTINGS.index(setting)
    found = [asdict(measure(Cell(number, kind, seed))) for seed in range(seeds)]
    return {name: float(np.mean([one[name] for one in found])) for name in found[0]}


def lost(seen: dict[str, float], rule: str) -> float:
    return seen[f"{rule}_honest"] - seen[f"{rule}_attacked"]


def chosen(data: str, learner: str = "", hard: float = 0.0) -> list[Setting]:
    return [one for one in SETTINGS if (one.data, one.learner, one.hard) == (data, learner, hard)]


MADE = [
    next(one for one in SETTINGS if (one.silos, one.hostile, one.hard) == (5, 1, 0.15)),
    next(one for one in SETTINGS if (one.silos, one.classes, one.hard) == (10, 2, 0.1)),
]


@pytest.mark.parametrize("kind", ALONE)
@pytest.mark.parametrize("setting", MADE, ids=["1 of 5", "2 of 10"])
def test_experts_that_err_together_are_defended_by_staple_and_not_by_the_majority(
    setting: Setting, kind: Attack
) -> None:
    seen = means(setting, kind, 5)
    assert lost(seen, "staple") <= 0.01
    assert lost(seen, "majority") > 0.01
    assert lost(seen, "majority") > 2 * lost(seen, "staple")


@pytest.mark.parametrize("kind", ALONE)
@pytest.mark.parametrize("setting", chosen("breast-cancer", "decision_tree"), ids=["5", "10"])
def test_real_learners_keep_their_consensus_where_the_majority_loses_more(
    setting: Setting, kind: Attack
) -> None:
    seen = means(setting, kind, 10)
    assert lost(seen, "staple") <= 0.01
    assert lost(seen, "majority") > lost(seen, "staple")


@pytest.mark.parametrize("kind", Attack)
@pytest.mark.parametrize("setting", chosen("digits", "logistic_regression"), ids=["5", "10"])
def test_on_digits_staple_is_better_than_the_majority_under_every_attack(
    setting: Setting, kind: Attack
) -> None:
    seen = means(setting, kind, 2)
    assert seen["staple_attacked"] > seen["majority_attacked"]
    assert lost(seen, "staple") < lost(seen, "majority")


ENOUGH = [one for one in chosen("made") if one.public_rows >= 2000]


@pytest.mark.parametrize("setting", ENOUGH, ids=lambda one: f"{one.classes}-{one.silos}")
def test_where_experts_err_alone_nothing_is_lost_but_what_the_hostile_silos_knew(
    setting: Setting,
) -> None:
    for kind in (Attack.RANDOM, Attack.CONSTANT):
        seen = means(setting, kind, 3)
        assert seen["staple_without"] - seen["staple_attacked"] < 0.005
    flipped = means(setting, Attack.FLIPPED, 3)
    assert lost(flipped, "staple") < 0.002


@pytest.mark.parametrize("setting", MADE, ids=["1 of 5", "2 of 10"])
def test_silos_that_collude_win_less_from_staple_and_trimming_than_from_the_majority(
    setting: Setting,
) -> None:
    seen = means(setting, Attack.COLLUDING, 5)
    assert lost(seen, "majority") > 0.02
    assert lost(seen, "staple") < lost(seen, "majority") / 2
    assert lost(seen, "trimmed") < lost(seen, "majority") / 2


def test_attacks_are_what_they_are_called() -> None:
    cast = robustness._honest_ballots(MADE[1], 0)
    hostile = sorted(cast.ballots)[:2]
    classes = len(cast.definition.labels)
    random = attack(Attack.RANDOM, cast, hostile, 0)
    assert all(abs(np.mean(votes == cast.truth) - 1 / classes) < 0.05 for votes in random.values())
    constant = attack(Attack.CONSTANT, cast, hostile, 0)
    assert len({int(vote) for votes in constant.values() for vote in votes}) == 1
    flipped = attack(Attack.FLIPPED, cast, hostile, 0)
    assert all(np.all(flipped[name] != cast.ballots[name]) for name in hostile)
    one, other = attack(Attack.COLLUDING, cast, hostile, 0).values()
    np.testing.assert_array_equal(one, other)
    assert np.mean(one == cast.truth) < 0.2


def test_the_report_goes_on_where_it_stopped_and_has_a_line_for_every_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(robustness, "SETTINGS", SETTINGS[-1:])
    cells = [Cell(0, kind, 0) for kind in Attack]
    known = {cell: measure(cell) for cell in cells}
    table = robustness.Table(tmp_path / "robustness.csv", Cell, robustness.Result)
    for cell, result in known.items():
        table.append(cell, result)
    assert not robustness.report(tmp_path, 1, False, Console(quiet=True))
    page = tmp_path / "robustness.md"
    text = page.read_text(encoding="utf-8")
    assert text == summary(known)
    assert [line.split(" | ")[2] for line in text.splitlines()[2:]] == list(robustness.RULES)
    assert f"{known[cells[2]].staple_attacked:.3f}" in text
