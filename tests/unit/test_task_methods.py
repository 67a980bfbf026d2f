"""The four methods in task.yaml: what each means by default, what it needs, what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.ballot import BallotShape, Encoding
from wire.errors import ConfigurationError
from wire.runtime.configuration import read_yaml
from wire.task.consensus_policy import ConsensusPolicy, Credibility, RuleName
from wire.task.definition import TaskDefinition
from wire.task.methods import FedauxPolicy, FedktLevel, FedktPolicy, Method

BASE: dict[str, Any] = {"name": "t", "public_set": "u", "rows": 8, "labels": ["a", "b", "c"]}


def definition(**changes: object) -> TaskDefinition:
    return TaskDefinition.model_validate({**BASE, **changes})


FEDKT_L1 = {"method": "fedkt", "fedkt": {"level": "L1"}, "privacy": {"party_gamma": 0.1}}
FEDKT_L2 = {
    "method": "fedkt",
    "fedkt": {"level": "L2"},
    "privacy": {"mechanisms": ["teacher_votes"]},
}
COFED = {"method": "cofed", "label_spaces": {"north": ["c", "a"], "south": ["b", "c"]}}
FEDAUX = {"method": "fedaux", "extractor": "e" * 64}
ALL = [
    {},
    {"cross_fit": 3},
    {"method": "fedkt"},
    FEDKT_L1,
    FEDKT_L2,
    COFED,
    {**COFED, "consensus": {"credibility": "data_size", "threshold": 0.45}},
    {**FEDAUX, "fedaux": {"negatives": 0.3, "regularisation": 0.05}},
    {"consensus": {"rule": "weighted", "weights": {"north": 3, "south": 0}}},
    {"consensus": {"rule": "staple"}},
    {"consensus": {"rule": "trimmed", "trim": 0.25}},
]


@pytest.mark.parametrize("settings", ALL)
def test_the_wire_keeps_every_setting_of_every_method(settings: dict[str, Any]) -> None:
    task = definition(**settings)
    back = TaskDefinition.from_proto(task.to_proto())
    assert (back, back.digest) == (task, task.digest)
    assert TaskDefinition.model_validate_json(task.canonical()) == task


def test_no_two_of_them_have_the_same_digest() -> None:
    assert len({definition(**settings).digest for settings in ALL}) == len(ALL)


def test_a_definition_that_uses_nothing_new_is_written_as_it_always_was() -> None:
    written = definition().canonical()
    for later in ("fedkt", "label_spaces", "fedaux", "extractor", "cross_fit", "threshold"):
        assert later not in written
    for later in ("trim", "credibility", "weights", "privacy"):
        assert later not in written
    assert '"consensus":{"min_share":0.9,"rule":"majority"}' in written


def test_a_method_alone_means_what_its_paper_says() -> None:
    fedkt = definition(method="fedkt")
    assert fedkt.rounds.max_rounds == 1
    assert fedkt.fedkt == FedktPolicy(level=FedktLevel.L0, partitions=2, teachers=5)
    assert fedkt.votes_per_ballot == 2
    cofed = definition(method="cofed")
    assert (cofed.rounds.max_rounds, cofed.consensus.threshold) == (1, 0.3)
    assert cofed.consensus.rule is RuleName.PER_CLASS_THRESHOLD
    fedaux = definition(**FEDAUX)
    assert fedaux.encoding is Encoding.SCORED
    assert fedaux.consensus.rule is RuleName.CERTAINTY_WEIGHTED
    assert fedaux.fedaux == FedauxPolicy(negatives=0.2, regularisation=0.1)
    assert definition().method is Method.FEDCT
    assert definition().votes_per_ballot == 1


@pytest.mark.parametrize(
    ("level", "partitions", "teachers"), [("L0", 2, 5), ("L1", 1, 5), ("L2", 1, 25)]
)
def test_each_level_of_fedkt_has_the_papers_numbers_unless_others_are_given(
    level: str, partitions: int, teachers: int
) -> None:
    assert FedktPolicy.model_validate({"level": level}) == FedktPolicy(
        level=FedktLevel(level), partitions=partitions, teachers=teachers
    )
    assert FedktPolicy.model_validate({"level": level, "teachers": 7}).teachers == 7


def test_what_a_person_writes_beats_what_a_method_means() -> None:
    task = definition(method="fedaux", extractor="e" * 64, rounds={"max_rounds": 4})
    assert task.rounds.max_rounds == 4
    mild = definition(**COFED, consensus={"threshold": 0.5})
    assert mild.consensus.threshold == 0.5
    assert mild.consensus.rule is RuleName.PER_CLASS_THRESHOLD


def test_a_silo_knows_the_classes_it_was_said_to_know_and_others_know_all() -> None:
    task = definition(**COFED)
    assert task.label_space("north") == (0, 2)
    assert task.label_space("south") == (1, 2)
    assert task.label_space("west") == (0, 1, 2)


def test_label_spaces_are_written_as_class_names_whatever_yaml_makes_of_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / "task.yaml"
    text = "name: t\npublic_set: u\nmethod: cofed\nlabels: [0, 1, no]\nlabel_spaces: {north: [0, no]}\n"
    path.write_text(text)
    assert read_yaml(path, TaskDefinition).label_space("north") == (0, 2)


def test_several_classes_may_claim_a_row_only_under_the_per_class_rule() -> None:
    assert definition(**COFED).consensus_shape == BallotShape(8, 3, Encoding.ONE_HOT)
    assert definition(**FEDAUX).consensus_shape == BallotShape(8, 3, Encoding.INDEX)
    assert definition(encoding="one_hot").consensus_shape == BallotShape(8, 3, Encoding.INDEX)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"fedkt": {}}, "the section fedkt belongs to method fedkt, not fedct"),
        ({"fedaux": {}}, "the section fedaux belongs to method fedaux, not fedct"),
        ({"label_spaces": {"north": ["a"]}}, "label_spaces belong to method cofed, not fedct"),
        ({"method": "fedkt", "cross_fit": 2}, "cross_fit belongs to method fedct, not fedkt"),
        ({"method": "fedkt", "rounds": {"max_rounds": 2}}, "method fedkt has one round"),
        ({"method": "cofed", "rounds": {"max_rounds": 2}}, "method cofed has one round"),
        ({"method": "cofed", "consensus": {"rule": "majority"}}, "per_class_threshold"),
        ({"method": "fedaux"}, "needs an extractor"),
        ({"method": "fedkt", "fedkt": {"level": "L1"}}, "privacy.party_gamma go together"),
        ({"method": "fedkt", "privacy": {"party_gamma": 1}}, "privacy.party_gamma go together"),
        ({"method": "fedkt", "fedkt": {"level": "L2"}}, "mechanisms: [teacher_votes]"),
        ({**COFED, "label_spaces": {"north": ["a", "z"]}}, "z is not among them"),
        ({**COFED, "label_spaces": {"north": []}}, "label_spaces.north must name some"),
        ({**COFED, "label_spaces": {"north": ["a", "a"]}}, "each once"),
        ({**COFED, "silos": ["south", "west"]}, "label_spaces names north, which does not take"),
        ({"consensus": {"rule": "staple"}, "encoding": "one_hot"}, "needs encoding: index or"),
        ({"consensus": {"rule": "certainty_weighted"}}, "needs encoding: scored, not index"),
        ({"consensus": {"rule": "staple"}, "privacy": {"party_gamma": 1}}, "ballots themselves"),
        (
            {"consensus": {"rule": "staple"}, "labels": [f"c{n}" for n in range(513)]},
            "at most 512 labels",
        ),
        ({"consensus": {"rule": "weighted"}}, "rule weighted needs credibility"),
        ({"consensus": {"weights": {"north": 2}}}, "rule majority counts every silo alike"),
        ({"consensus": {"rule": "weighted", "weights": {"north": 0}}}, "at least one above 0"),
        (
            {"consensus": {"rule": "weighted", "credibility": "data_size", "weights": {"n": 2}}},
            "weights are given, but credibility is data_size",
        ),
    ],
)
def test_settings_that_contradict_one_another_are_refused_in_a_sentence(
    tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    import yaml

    path = tmp_path / "task.yaml"
    path.write_text(yaml.safe_dump({**BASE, **settings}))
    with pytest.raises(ConfigurationError) as refused:
        read_yaml(path, TaskDefinition)
    assert says in refused.value.sentence


@given(
    rule=st.sampled_from(RuleName),
    share=st.integers(1, 1000),
    threshold=st.integers(0, 999),
    trim=st.integers(0, 499),
    weights=st.dictionaries(st.sampled_from(["north", "south", "x9"]), st.integers(1, 10**6)),
)
def test_the_wire_keeps_every_policy(
    rule: RuleName, share: int, threshold: int, trim: int, weights: dict[str, int]
) -> None:
    weighing = rule in (RuleName.WEIGHTED, RuleName.PER_CLASS_THRESHOLD)
    credibility = Credibility.EQUAL
    if weighing:
        credibility = Credibility.SET if weights else Credibility.DATA_SIZE
    policy = ConsensusPolicy(
        rule=rule,
        min_share=share / 1000,
        threshold=threshold / 1000,
        trim=trim / 1000,
        credibility=credibility,
        weights=weights if weighing else {},
    )
    assert ConsensusPolicy.from_proto(policy.to_proto()) == policy
