"""Previews: what a rule would have published, when there is none, and what the command asks for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import yaml
from rich.console import Console

from coordinator.cli.agreement_view import FAR_BELOW_MEDIAN, LOW, agreement_rows, stand_out
from coordinator.cli.task_preview import (
    RulePreview,
    comparison,
    fitting,
    policy,
    preview_row,
    weights,
)
from coordinator.consensus import elect
from coordinator.rounds.preview import preview, require_previewable
from wire.ballot import Encoding, pack, unpack
from wire.consilium.v1 import admin_pb2
from wire.errors import PREVIEW_REFUSED, ConfigurationError, Refusal
from wire.privacy.declaration import Declaration
from wire.task.consensus_policy import ConsensusPolicy, Credibility, RuleName
from wire.task.definition import TaskDefinition

pytestmark = pytest.mark.slow

LABELS = ("ill", "healthy")
ROWS = 61
WRONG = {"east": 0.6, "middle": 0.1, "north": 0.1, "south": 0.1, "west": 0.6}
"""How often each silo is wrong."""
POLICIES = [
    ConsensusPolicy(rule=RuleName.MAJORITY),
    ConsensusPolicy(rule=RuleName.QUALIFIED_MAJORITY, min_share=0.8),
    ConsensusPolicy(rule=RuleName.PER_CLASS_THRESHOLD, threshold=0.3),
    ConsensusPolicy(rule=RuleName.WEIGHTED, credibility=Credibility.SET, weights={"east": 5}),
    ConsensusPolicy(rule=RuleName.STAPLE),
    ConsensusPolicy(rule=RuleName.TRIMMED, trim=0.4),
]


def task(**changes: object) -> TaskDefinition:
    values = {"name": "flu", "public_set": "ab" * 32, "rows": ROWS, "labels": LABELS}
    return TaskDefinition.model_validate({**values, **changes})


def box(definition: TaskDefinition) -> list[tuple[str, bytes]]:
    """Five votes on every row between two classes: nothing can tie, whatever the rule."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, ROWS)
    return [
        (silo, pack(truth ^ (rng.random(ROWS) < wrong), definition.shape))
        for silo, wrong in WRONG.items()
    ]


def declared(ballots: list[tuple[str, bytes]]) -> dict[str, Declaration]:
    return {silo: Declaration() for silo, _ in ballots}


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(Refusal) as caught:
        act()
    assert caught.value.code == PREVIEW_REFUSED.code
    return caught.value.sentence


# -- what would have been published -----------------------------------------------------------------------


@pytest.mark.parametrize("tried", POLICIES, ids=lambda tried: str(tried.rule))
def test_a_preview_is_what_a_task_with_that_rule_publishes(tried: ConsensusPolicy) -> None:
    definition = task()
    ballots = box(definition)
    said = declared(ballots)
    published = elect(definition, 1, said, ballots)
    found = preview(definition, tried, 1, said, ballots, published.payload)
    other = elect(task(consensus=tried.model_dump()), 1, said, ballots)
    counted = [int((other.labels() == index).sum()) for index in range(len(LABELS))]
    assert found.labelled_rows == tuple(counted)
    assert found.abstained_rows == ROWS - sum(counted)
    assert found.differing_rows == int((other.labels() != published.labels()).sum())
    assert (found.differing_rows == 0) == (tried.rule is RuleName.MAJORITY)
    assert found.agreement == other.agreement
    assert set(found.agreement) == set(WRONG)


def test_ties_fall_as_they_did_so_that_a_difference_is_the_rules() -> None:
    definition = task()
    first = np.arange(ROWS) % 2
    ballots = [
        ("north", pack(first, definition.shape)),
        ("south", pack(1 - first, definition.shape)),
    ]
    said = declared(ballots)
    published = elect(definition, 3, said, ballots).payload
    assert len(np.unique(unpack(published, definition.shape))) == 2
    for same in (
        ConsensusPolicy(rule=RuleName.QUALIFIED_MAJORITY, min_share=0.5),
        ConsensusPolicy(rule=RuleName.WEIGHTED, weights={"north": 2, "south": 2}),
    ):
        assert preview(definition, same, 3, said, ballots, published).differing_rows == 0


def test_claims_are_previewed_and_differ_from_as_one_sees_them_who_knows_all_classes() -> None:
    definition = task(method="cofed", label_spaces={"east": ["ill"]}, consensus={"threshold": 0.2})
    ballots = [
        (silo, pack(np.full(ROWS, vote), definition.shape))
        for silo, vote in zip(WRONG, (0, 0, 0, 1, 1), strict=True)
    ]
    said = declared(ballots)
    published = elect(definition, 1, said, ballots).payload
    # Both classes claim every row, so nobody who knows both sees a label.
    own = preview(definition, definition.consensus, 1, said, ballots, published)
    assert (own.abstained_rows, own.differing_rows) == (ROWS, 0)
    one = ConsensusPolicy(
        rule=RuleName.PER_CLASS_THRESHOLD, threshold=0.5, weights={"east": 1, "south": 0, "west": 0}
    )
    found = preview(definition, one, 1, said, ballots, published)
    assert found.labelled_rows == (ROWS, 0)
    assert found.differing_rows == ROWS


# -- when there is none -----------------------------------------------------------------------------------


def test_behind_party_noise_there_is_no_preview() -> None:
    noisy = task(privacy={"party_gamma": 0.1})
    sentence = refusal(lambda: require_previewable(noisy, noisy.consensus, WRONG))
    assert "flu" in sentence
    assert "another release" in sentence


def test_a_rule_that_cannot_read_the_ballots_is_refused() -> None:
    certain = ConsensusPolicy(rule=RuleName.CERTAINTY_WEIGHTED)
    sentence = refusal(lambda: require_previewable(task(), certain, WRONG))
    assert "rule certainty_weighted reads scored ballots, and these are index" in sentence
    require_previewable(task(encoding="scored"), certain, WRONG)


def test_weights_must_name_silos_that_voted() -> None:
    heavy = ConsensusPolicy(rule=RuleName.WEIGHTED, weights={"north": 2, "nort": 3})
    assert "weights name nort, of whom" in refusal(
        lambda: require_previewable(task(), heavy, WRONG)
    )
    require_previewable(task(), heavy, [*WRONG, "nort"])


# -- what the command asks for ----------------------------------------------------------------------------


def test_weights_are_read_from_the_command_line() -> None:
    assert weights(["north=3", "south=0"]) == {"north": 3, "south": 0}
    for wrong in ("north", "=3", "north=much", "north=-1", "north=1.5"):
        with pytest.raises(ConfigurationError, match="--weight"):
            weights([wrong])


def test_what_is_not_given_is_as_in_the_task() -> None:
    own = ConsensusPolicy(rule=RuleName.QUALIFIED_MAJORITY, min_share=0.7, trim=0.1)
    assert policy(own, own.rule, {}) == own
    assert policy(own, RuleName.TRIMMED, {}).trim == 0.1
    assert policy(own, own.rule, {"min_share": 0.8}).min_share == 0.8
    weighing = ConsensusPolicy(rule=RuleName.WEIGHTED, weights={"north": 3})
    assert policy(weighing, RuleName.WEIGHTED, {}) == weighing
    assert policy(weighing, RuleName.PER_CLASS_THRESHOLD, {}).weights == {"north": 3}
    sized = policy(weighing, RuleName.WEIGHTED, {"credibility": Credibility.DATA_SIZE})
    assert (sized.credibility, sized.weights) == (Credibility.DATA_SIZE, {})


@pytest.mark.parametrize(
    ("rule", "given", "says"),
    [
        (RuleName.WEIGHTED, {}, "needs credibility"),
        (RuleName.MAJORITY, {"weights": {"north": 3}}, "counts every silo alike"),
        (RuleName.QUALIFIED_MAJORITY, {"min_share": 2.0}, "min_share"),
    ],
)
def test_options_that_do_not_fit_are_named(
    rule: RuleName, given: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        policy(ConsensusPolicy(), rule, given)


def test_all_rules_that_fit_are_compared_and_no_other() -> None:
    def rules(encoding: Encoding, given: dict[str, object]) -> set[RuleName]:
        return {each.rule for each in fitting(task(encoding=encoding), given)}

    for encoding in Encoding:
        fit = {rule for rule in RuleName if encoding in rule.encodings}
        assert rules(encoding, {}) == fit - {RuleName.WEIGHTED}
        assert rules(encoding, {"weights": {"north": 2}}) == fit
        assert rules(encoding, {"credibility": Credibility.DATA_SIZE}) == fit
    weighted = {each.rule: each for each in fitting(task(), {"weights": {"north": 2}, "trim": 0.4})}
    assert weighted[RuleName.WEIGHTED].weights == {"north": 2}
    assert weighted[RuleName.PER_CLASS_THRESHOLD].weights == {"north": 2}
    assert weighted[RuleName.TRIMMED].trim == 0.4


def test_a_row_of_the_comparison_says_how_much_and_how_different() -> None:
    found = admin_pb2.PreviewConsensusResponse(
        round=2,
        rows=40,
        abstained_rows=4,
        differing_rows=10,
        labelled_rows=[20, 16],
        agreement=said({"north": (30, 12), "south": (30, 27)}),
    )
    row = preview_row(
        RulePreview(ConsensusPolicy(rule=RuleName.TRIMMED), found), ("ill", "healthy")
    )
    assert row == {
        "rule": "trimmed 0.2",
        "labelled": 36,
        "abstained": 4,
        "differs": 10,
        "rows by class": "ill 20, healthy 16",
        "lowest agreement": "north 40.0%",
    }


def test_no_name_is_cut_short_on_a_narrow_terminal() -> None:
    found = admin_pb2.PreviewConsensusResponse(
        rows=10**6, labelled_rows=[10**6, 0], agreement=said({"st-elsewhere": (30, 12)})
    )
    rows = [
        preview_row(RulePreview(ConsensusPolicy(rule=rule), found), ("benign", "malignant"))
        for rule in RuleName
        if rule is not RuleName.WEIGHTED
    ]
    console = Console(width=80)
    with console.capture() as captured:
        console.print(comparison(rows))
    page = captured.get()
    for word in ("per_class_threshold", "qualified_majority", "st-elsewhere", "malignant"):
        assert word in page


# -- who stands out ---------------------------------------------------------------------------------------


def said(agreement: dict[str, tuple[int, int]]) -> list[admin_pb2.SiloAgreement]:
    return [
        admin_pb2.SiloAgreement(silo=silo, compared_rows=compared, agreeing_rows=same)
        for silo, (compared, same) in agreement.items()
    ]


def test_the_worst_comes_first_and_whoever_is_far_below_the_others_is_marked() -> None:
    rows = agreement_rows(said({"a": (10, 9), "b": (100, 41), "c": (10, 8), "silent": (0, 0)}))
    assert [row["silo"] for row in rows] == ["b", "c", "a"]
    assert (rows[0]["agrees"], rows[0]["rows compared"]) == ("41.0%", 100)
    assert [row[""] for row in rows] == ["far below the others", "", ""]


@pytest.mark.parametrize(
    ("ratios", "outliers"),
    [
        ([95, 90, 69], {2}),
        ([95, 90, 70], set()),
        ([95, 92, 71], set()),
        ([50, 50, 35], set()),
        ([50, 50, 29], {2}),
        ([10], set()),
        ([], set()),
    ],
)
def test_a_silo_stands_out_if_it_is_low_and_far_below_the_median(
    ratios: list[int], outliers: set[int]
) -> None:
    agreement = said({str(number): (100, same) for number, same in enumerate(ratios)})
    assert stand_out(agreement) == {str(number) for number in outliers}


def test_the_alert_is_raised_by_the_same_two_numbers() -> None:
    with open("docker/prometheus/consortium/alerts.yaml") as file:
        groups = yaml.safe_load(file)["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    [alert] = [rule for rule in rules if rule.get("alert") == "ConsiliumSiloDisagrees"]
    assert f"< {LOW:g}\n" in alert["expr"]
    assert f"- {FAR_BELOW_MEDIAN:g}\n" in alert["expr"]
