"""What a hospital approved keeps its digest, whatever later versions add to a task definition."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pinned_tasks import PINNED
from pydantic import BaseModel, ValidationError
from task_fields import model_fields_of, nested_models

from wire.ballot import Encoding
from wire.privacy.declaration import MechanismName
from wire.task.canonical import ALWAYS_WRITTEN, canonical
from wire.task.consensus_policy import ConsensusPolicy, Credibility, RuleName
from wire.task.definition import RoundPolicy, TaskDefinition
from wire.task.methods import FedktLevel, Method

MODELS = {model.__name__: model for model in nested_models(TaskDefinition)}

DEFAULTS = {
    "TaskDefinition.cross_fit": 1,
    "TaskDefinition.extractor": "",
    "TaskDefinition.fedaux": None,
    "TaskDefinition.fedkt": None,
    "TaskDefinition.label_spaces": {},
    "TaskDefinition.privacy": {
        "accept_estimates": False,
        "max_delta": 1e-05,
        "max_epsilon": None,
        "mechanisms": [],
        "party_gamma": None,
    },
    "ConsensusPolicy.credibility": "equal",
    "ConsensusPolicy.threshold": 0.3,
    "ConsensusPolicy.trim": 0.2,
    "ConsensusPolicy.weights": {},
}
"""What an approved definition means by saying nothing. A default that changes would change that meaning without
changing the digest; a new field belongs here with the default it will keep."""


def read(text: str) -> TaskDefinition:
    return TaskDefinition.model_validate(yaml.safe_load(text))


def as_before_it_was_frozen(task: TaskDefinition) -> str:
    """The canonical text as version 0.1.0, whose lists of later fields were kept by hand, computed it."""
    later = {"privacy", "cross_fit", "fedkt", "label_spaces", "fedaux", "extractor"}
    later_in_consensus = {"threshold", "trim", "credibility", "weights"}

    def silent(model: BaseModel, names: set[str]) -> set[str]:
        fields = type(model).model_fields
        return {
            name
            for name in names
            if getattr(model, name) == fields[name].get_default(call_default_factory=True)
        }

    # What later versions add, version 0.1.0 did not know.
    known: dict[str, Any] = dict.fromkeys(ALWAYS_WRITTEN["TaskDefinition"] | later, True)
    known["consensus"] = set(ALWAYS_WRITTEN["ConsensusPolicy"] | later_in_consensus)
    known["rounds"] = set(ALWAYS_WRITTEN["RoundPolicy"])
    known["privacy"] = set(ALWAYS_WRITTEN["PrivacyDemand"])
    known["fedkt"] = set(ALWAYS_WRITTEN["FedktPolicy"])
    known["fedaux"] = set(ALWAYS_WRITTEN["FedauxPolicy"])
    for name in silent(task, later):
        del known[name]
    known["consensus"] -= silent(task.consensus, later_in_consensus)
    values = task.model_dump(mode="json", include=known)
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@pytest.mark.parametrize("what", PINNED)
def test_a_definition_keeps_the_digest_it_was_approved_under(what: str) -> None:
    text, digest = PINNED[what]
    assert read(text).digest == digest
    assert TaskDefinition.from_proto(read(text).to_proto()).digest == digest
    assert TaskDefinition.model_validate_json(read(text).canonical()).digest == digest


def test_the_pinned_definitions_use_every_method_rule_level_mechanism_and_field() -> None:
    tasks = [read(text) for text, _ in PINNED.values()]
    assert {task.method for task in tasks} == set(Method)
    assert {task.consensus.rule for task in tasks} == set(RuleName)
    assert {task.consensus.credibility for task in tasks} == set(Credibility)
    assert {task.encoding for task in tasks} == set(Encoding)
    assert {task.fedkt.level for task in tasks if task.fedkt} == set(FedktLevel)
    assert {name for task in tasks for name in task.privacy.mechanisms} == set(MechanismName)
    used = {name for task in tasks for name in _used(task)}
    assert used == {f"{model}.{name}" for model in MODELS for name in MODELS[model].model_fields}


def _used(model: BaseModel) -> Iterator[str]:
    """The fields, at any depth, that do not have their default."""
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if value != field.get_default(call_default_factory=True):
            yield f"{type(model).__name__}.{name}"
        if isinstance(value, BaseModel):
            yield from _used(value)


def test_what_a_definition_means_by_saying_nothing_is_what_it_meant() -> None:
    found = {}
    for model, name, field in model_fields_of(TaskDefinition):
        if name not in ALWAYS_WRITTEN.get(model.__name__, ()):
            default = field.get_default(call_default_factory=True)
            dumped = default.model_dump(mode="json") if isinstance(default, BaseModel) else default
            found[f"{model.__name__}.{name}"] = dumped
    assert found == DEFAULTS


def test_what_is_always_written_exists() -> None:
    assert set(ALWAYS_WRITTEN) <= set(MODELS)
    for name, fields in ALWAYS_WRITTEN.items():
        assert fields <= set(MODELS[name].model_fields)


class Later(BaseModel):
    depth: int = 3
    width: int = 4


def wider() -> type[TaskDefinition]:
    """TaskDefinition as a later version may have it: fields added to it and to what it contains."""

    class WiderRounds(RoundPolicy):
        colour: str = "red"

    class WiderConsensus(ConsensusPolicy):
        tint: tuple[int, ...] = ()

    class Wider(TaskDefinition):
        rounds: WiderRounds = WiderRounds()
        consensus: WiderConsensus = WiderConsensus()
        later: Later = Later()
        many: dict[str, tuple[Later, ...]] = {}  # noqa: RUF012 pydantic copies it

    WiderRounds.__name__, WiderConsensus.__name__ = "RoundPolicy", "ConsensusPolicy"
    Wider.__name__ = "TaskDefinition"
    return Wider


@pytest.mark.parametrize("what", PINNED)
def test_fields_that_a_later_version_adds_at_any_depth_leave_the_digest_alone(what: str) -> None:
    text, digest = PINNED[what]
    assert wider().model_validate(yaml.safe_load(text)).digest == digest


def test_a_later_field_is_written_once_it_says_something() -> None:
    values = yaml.safe_load(next(iter(PINNED.values()))[0])
    values["rounds"]["colour"] = "blue"
    values["later"] = {"width": 5}
    values["many"] = {"x": [{}, {"depth": 1}]}
    written = json.loads(wider().model_validate(values).canonical())
    assert written["rounds"]["colour"] == "blue"
    assert written["later"] == {"width": 5}
    assert written["many"] == {"x": [{}, {"depth": 1}]}
    assert "tint" not in written["consensus"]


permille = st.integers(1, 999).map(lambda n: n / 1000)
texts = st.text(min_size=1, max_size=6)
policies = st.fixed_dictionaries(
    {},
    optional={
        "rule": st.sampled_from(RuleName),
        "min_share": permille,
        "threshold": permille,
        "trim": st.integers(0, 499).map(lambda n: n / 1000),
        "credibility": st.sampled_from(Credibility),
        "weights": st.dictionaries(st.sampled_from(["north", "south"]), st.integers(1, 9)),
    },
)
demands = st.fixed_dictionaries(
    {},
    optional={
        "mechanisms": st.lists(st.sampled_from(MechanismName), max_size=2, unique=True),
        "max_epsilon": st.floats(0.001, 100),
        "max_delta": st.floats(1e-12, 0.5),
        "accept_estimates": st.booleans(),
        "party_gamma": st.floats(0.001, 10),
    },
)
definitions = st.fixed_dictionaries(
    {"name": st.just("t"), "public_set": texts, "labels": st.just(["a", "b", "é"])},
    optional={
        "rows": st.integers(0, 10**9),
        "method": st.sampled_from(Method),
        "consensus": policies,
        "rounds": st.fixed_dictionaries(
            {},
            optional={
                "max_rounds": st.integers(1, 9),
                "deadline": st.floats(0.1, 1e6),
                "grace": st.floats(0, 1e6),
                "stop_churn": permille,
            },
        ),
        "local_steps": st.integers(1, 10**6),
        "encoding": st.sampled_from(Encoding),
        "silos": st.just(["north", "south"]),
        "privacy": demands,
        "cross_fit": st.integers(1, 20),
        "fedkt": st.fixed_dictionaries({}, optional={"teachers": st.integers(1, 9)}),
        "label_spaces": st.dictionaries(st.just("north"), st.just(["a", "é"])),
        "fedaux": st.fixed_dictionaries({}, optional={"negatives": permille}),
        "extractor": texts,
    },
)


@given(values=definitions)
def test_every_definition_of_today_is_written_as_before(values: dict[str, Any]) -> None:
    """Definitions that contradict themselves are mended one setting at a time, so that few examples are lost."""
    task = _first_valid(values)
    text = canonical(task)
    assert text == as_before_it_was_frozen(task)
    assert task.digest == hashlib.sha256(text.encode()).hexdigest()
    assert TaskDefinition.model_validate_json(text) == task


def _first_valid(values: dict[str, Any]) -> TaskDefinition:
    """The definition without as many of its optional settings as it takes for the rest to fit together."""
    essential = {"name", "public_set", "labels"}
    remaining = dict(values)
    for dropped in [None, *(name for name in values if name not in essential)]:
        remaining.pop(dropped or "", None)
        try:
            return TaskDefinition.model_validate(remaining)
        except ValidationError:
            continue
    raise AssertionError("the essential settings alone are not valid")
