"""Task definitions: read from YAML, carried over the wire, identified by their digest."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.ballot import Encoding
from wire.errors import ConfigurationError
from wire.privacy.declaration import MechanismName
from wire.runtime.configuration import read_yaml
from wire.task.consensus_policy import RuleName
from wire.task.definition import TaskDefinition

YAML = """
name: breast-cancer
public_set: breast-cancer-public
labels: [malignant, benign]
consensus: {rule: qualified_majority, min_share: 0.9}
rounds: {max_rounds: 5, deadline: 10m, grace: 30s, quorum: 3}
"""


def definition(**changes: object) -> TaskDefinition:
    return TaskDefinition.model_validate(
        {"name": "t", "public_set": "u", "labels": ["a", "b"], **changes}
    )


def write(folder: Path, text: str) -> Path:
    path = folder / "task.yaml"
    path.write_text(text)
    return path


def test_a_task_yaml_is_read_with_durations_a_person_writes(tmp_path: Path) -> None:
    task = read_yaml(write(tmp_path, YAML), TaskDefinition)
    assert task.rounds.deadline == 600
    assert task.rounds.grace == 30
    assert task.consensus.rule is RuleName.QUALIFIED_MAJORITY


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: t\nlabels: [a, b]\n", "`public_set` is missing"),
        (YAML + "lables: [x]\n", "`lables` is not a known key; did you mean `labels`?"),
        (
            YAML.replace("quorum: 3", "qourum: 3"),
            "`rounds.qourum` is not a known key; did you mean `quorum`?",
        ),
        (YAML.replace("10m", "soon"), "'soon' is not a duration"),
        (YAML.replace("[malignant, benign]", "[a]"), "`labels`"),
        (YAML.replace("[malignant, benign]", "[a, a]"), "labels must not repeat a name"),
        (YAML.replace("name: breast-cancer", "name: Breast Cancer", 1), "not a valid name"),
        (YAML + "silos: [essen]\n", "only 1 silos take part"),
        (YAML + "privacy: {mechanisms: [xor]}\n", "needs encoding: one_hot, not index"),
        (YAML + "privacy: {mechanisms: [none], max_epsilon: 1}\n", "leave max_epsilon out"),
        (YAML + "privacy: {max_epsilon: 1.0e-7}\n", "`privacy.max_epsilon`"),
        (YAML + "privacy: {party_gamma: 1.0e-7}\n", "`privacy.party_gamma`"),
        ("name: [", "line 1: expected"),
        ("just text", "not a list of `key: value` lines"),
    ],
)
def test_a_wrong_task_yaml_names_file_key_and_fix(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigurationError) as refused:
        read_yaml(path, TaskDefinition)
    assert says in refused.value.sentence
    assert str(path) in refused.value.sentence


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        read_yaml(tmp_path / "nowhere.yaml", TaskDefinition)


def test_labels_yaml_reads_as_numbers_or_booleans_are_class_names(tmp_path: Path) -> None:
    path = write(tmp_path, "name: t\npublic_set: u\nlabels: [0, 1, yes]\n")
    assert read_yaml(path, TaskDefinition).labels == ("0", "1", "true")


@given(
    labels=st.lists(st.text(min_size=1, max_size=8), min_size=2, max_size=6, unique=True),
    encoding=st.sampled_from(Encoding),
    permille=st.integers(1, 1000),
    deadline=st.integers(1, 10**9).map(lambda ms: ms / 1000),
    steps=st.integers(1, 10**6),
)
def test_the_wire_keeps_every_part_of_a_definition(
    labels: list[str], encoding: Encoding, permille: int, deadline: float, steps: int
) -> None:
    task = definition(
        labels=labels,
        encoding=encoding,
        consensus={"rule": "qualified_majority", "min_share": permille / 1000},
        rounds={"deadline": deadline},
        local_steps=steps,
        silos=["essen", "lyon"],
    )
    back = TaskDefinition.from_proto(task.to_proto())
    assert back == task
    assert back.digest == task.digest


@given(
    mechanisms=st.lists(st.sampled_from(MechanismName), min_size=2, unique=True),
    epsilon=st.one_of(st.none(), st.integers(1, 10**12).map(lambda n: n / 10**6)),
    delta=st.integers(1, 10**12 - 1).map(lambda n: n / 10**12),
    gamma=st.one_of(st.none(), st.integers(1, 10**9).map(lambda n: n / 10**6)),
    estimates=st.booleans(),
)
def test_the_wire_keeps_every_demand_on_privacy(
    mechanisms: list[MechanismName],
    epsilon: float | None,
    delta: float,
    gamma: float | None,
    estimates: bool,
) -> None:
    demand = {
        "mechanisms": mechanisms,
        "max_epsilon": epsilon,
        "max_delta": delta,
        "party_gamma": gamma,
        "accept_estimates": estimates,
    }
    task = definition(privacy=demand)
    back = TaskDefinition.from_proto(task.to_proto())
    assert (back, back.digest) == (task, task.digest)


@pytest.mark.parametrize(
    "change",
    [
        {"labels": ["b", "a"]},
        {"rows": 7},
        {"local_steps": 51},
        {"encoding": "one_hot"},
        {"rounds": {"quorum": 3}},
        {"silos": ["essen", "lyon"]},
        {"privacy": {"max_epsilon": 1}},
        {"privacy": {"party_gamma": 0.1}},
        {"privacy": {"mechanisms": ["xor", "none"]}},
    ],
)
def test_any_change_changes_the_digest(change: dict[str, object]) -> None:
    assert definition(**change).digest != definition().digest


def test_a_label_has_at_most_200_characters() -> None:
    assert definition(labels=["a" * 200, "b"]).labels[0] == "a" * 200
    for labels in (["a" * 201, "b"], ["", "b"]):
        with pytest.raises(ValueError, match="labels"):
            definition(labels=labels)


def test_a_definition_has_at_most_64_kibibytes() -> None:
    few = [f"{number:03d}" + "x" * 197 for number in range(300)]
    assert len(definition(labels=few).canonical()) < 64 << 10
    many = [f"{number:03d}" + "x" * 197 for number in range(330)]
    with pytest.raises(ValueError, match="fewer or shorter labels"):
        definition(labels=many)
    with pytest.raises(ValueError, match="fewer or shorter labels"):
        definition(silos=[f"silo-{number:050d}" for number in range(1200)])
