"""A task in plain words, as the admin and the hospital's officer read it."""

from __future__ import annotations

import pytest

from coordinator.cli.task_view import definition_words
from wire.task.definition import TaskDefinition
from wire.task.words import task_words


def words(**changes: object) -> dict[str, str]:
    values = {"name": "flu", "public_set": "ab" * 32, "rows": 100, "labels": ["ill", "well", "odd"]}
    return task_words(TaskDefinition.model_validate({**values, **changes}))


def test_a_plain_task_says_no_more_than_its_method_and_rule() -> None:
    assert words(local_steps=20) == {
        "method": "fedct, 20 local steps: train, vote, learn from the consensus, again",
        "rule": "majority: the class with most votes",
    }


@pytest.mark.parametrize(
    ("consensus", "says"),
    [
        ({"rule": "qualified_majority", "min_share": 0.85}, "if it has 85.0% of them"),
        ({"rule": "per_class_threshold", "threshold": 0.25}, "more than 25.0% of the silos"),
        ({"rule": "trimmed", "trim": 0.15}, "at most 15.0%"),
        ({"rule": "staple"}, "estimated from all ballots"),
    ],
)
def test_a_rule_is_told_with_the_parameter_it_heeds(
    consensus: dict[str, object], says: str
) -> None:
    told = words(consensus=consensus)["rule"]
    assert told.startswith(f"{consensus['rule']}: ")
    assert says in told


@pytest.mark.parametrize(
    ("consensus", "says"),
    [
        ({"rule": "weighted", "credibility": "data_size"}, "power of two, leaves with each ballot"),
        (
            {"rule": "weighted", "weights": {"south": 1, "north": 3}},
            "set by the task: north 3, south 1; every other silo 1",
        ),
        ({"rule": "per_class_threshold"}, "every silo counts alike"),
    ],
)
def test_it_says_where_weights_come_from_and_what_leaves_for_them(
    consensus: dict[str, object], says: str
) -> None:
    assert says in words(consensus=consensus)["weights"]


def test_cross_fitting_is_told() -> None:
    assert (
        "cut into 3 parts, each labelled by a learner that has not seen"
        in words(cross_fit=3)["method"]
    )


@pytest.mark.parametrize(
    ("fedkt", "privacy", "says"),
    [
        ({}, {}, "L0: one vote. The silo's patients are dealt 2 times to 5 teachers"),
        ({"partitions": 3}, {}, "a vote only where all 3 agree"),
        ({"level": "L1"}, {"party_gamma": 0.1}, "hides a whole silo"),
        ({"level": "L2"}, {"mechanisms": ["teacher_votes"]}, "dealt once to 25 teachers"),
        ({"level": "L2"}, {"mechanisms": ["teacher_votes"]}, "which hides a patient"),
    ],
)
def test_fedkt_is_told_with_its_level(
    fedkt: dict[str, object], privacy: dict[str, object], says: str
) -> None:
    assert says in words(method="fedkt", fedkt=fedkt, privacy=privacy)["method"]


def test_cofed_says_what_every_silo_knows() -> None:
    spaces = {"south": ["ill", "odd"], "north": ["well"]}
    told = words(method="cofed", label_spaces=spaces)
    assert "one vote" in told["method"]
    assert told["classes"] == (
        "north knows well; south knows ill, odd; every other silo all of them"
    )
    named = words(method="cofed", label_spaces=spaces, silos=["north", "south"])
    assert named["classes"] == "north knows well; south knows ill, odd"


def test_fedaux_says_what_leaves_with_labels_and_what_it_needs() -> None:
    told = words(method="fedaux", extractor="cd" * 32, fedaux={"negatives": 0.3})
    assert "4 bits leaves with each label, paid for once" in told["method"]
    assert "30.0% of the public rows (λ = 0.1)" in told["method"]
    assert told["extractor"].startswith("cd" * 32)
    assert "certainties need it" in told["extractor"]
    assert "learners may start from it" in words(extractor="cd" * 32)["extractor"]


def test_the_admin_reads_the_same_with_what_is_asked_of_ballots() -> None:
    task = TaskDefinition(
        name="flu", public_set="ab" * 32, rows=9, labels=("a", "b"), privacy={"max_epsilon": 2}
    )
    assert definition_words(task.to_proto()) == {
        **task_words(task),
        "asks for": "ε ≤ 2 at δ ≤ 1e-05, no estimates",
    }
