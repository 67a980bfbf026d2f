"""A field of a task definition is in the model, in the proto, on the wire and in words, or nowhere."""

from __future__ import annotations

import pytest
import yaml
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from pinned_tasks import PINNED
from pydantic import create_model
from rich.console import Console
from task_fields import Path, field_at, lost_on_the_wire, paths, unmatched, untold

from silo_agent.trainer.approval.consent import ApprovalState, Decision
from silo_agent.trainer.approval.policy import ApprovalCriteria, Policy
from silo_agent.trainer.approval.view import SeenTask, print_definition
from wire.consilium.v1 import task_pb2
from wire.task.definition import RoundPolicy, TaskDefinition

BASES = [values for text, _ in PINNED.values() if "rows" in (values := yaml.safe_load(text))]
PATHS = list(paths(TaskDefinition))
MESSAGE = task_pb2.TaskDefinition.DESCRIPTOR

NOT_WORTH_A_SENTENCE = {
    "RoundPolicy.grace": "it moves the end of a round within the time that is told",
}
"""Fields a person need not read of before approving, and why."""


def approval_page(task: TaskDefinition) -> str:
    """What the hospital's officer reads, without the digest, which changes with everything."""
    console = Console(width=1000)
    with console.capture() as captured:
        print_definition(
            SeenTask(task, ApprovalCriteria(Policy(), ""), Decision(ApprovalState.WAITING), ()),
            console,
        )
    lines = captured.get().splitlines()
    return "\n".join(line for line in lines if line.split()[0] != "digest")


def dotted(path: Path) -> str:
    return ".".join(path)


def test_the_model_and_the_proto_have_the_same_fields() -> None:
    assert unmatched(TaskDefinition, MESSAGE) == []


@pytest.mark.parametrize("path", PATHS, ids=dotted)
def test_every_field_survives_the_wire(path: Path) -> None:
    assert lost_on_the_wire(TaskDefinition, BASES, path) == ""


@pytest.mark.parametrize("path", PATHS, ids=dotted)
def test_every_field_is_told_to_whoever_approves_it(path: Path) -> None:
    full, _ = field_at(TaskDefinition, path)
    silent = untold(TaskDefinition, BASES, approval_page, path)
    assert silent == (full in NOT_WORTH_A_SENTENCE)


def test_what_is_not_worth_a_sentence_exists() -> None:
    fields = {field_at(TaskDefinition, path)[0] for path in PATHS}
    assert set(NOT_WORTH_A_SENTENCE) <= fields


# -- that these tests notice ---------------------------------------------------------------------


def with_a_field_more(**field: object) -> type[TaskDefinition]:
    return create_model("TaskDefinition", __base__=TaskDefinition, **field)  # type: ignore[call-overload,no-any-return]


def test_a_field_of_the_model_alone_is_noticed() -> None:
    wider = with_a_field_more(colour=(str, "red"))
    assert unmatched(wider, MESSAGE) == ["TaskDefinition.colour is in no message"]
    assert ("colour",) in paths(wider)
    assert "does not survive" in lost_on_the_wire(wider, BASES, ("colour",))
    assert untold(wider, BASES, approval_page, ("colour",))


def test_a_field_of_a_section_alone_is_noticed() -> None:
    rounds = create_model("RoundPolicy", __base__=RoundPolicy, colour=(str, "red"))
    wider = with_a_field_more(rounds=(rounds, rounds()))
    assert unmatched(wider, MESSAGE) == ["RoundPolicy.colour is in no message"]
    assert ("rounds", "colour") in paths(wider)
    assert "does not survive" in lost_on_the_wire(wider, BASES, ("rounds", "colour"))


def test_a_field_of_a_type_nobody_thought_of_is_noticed() -> None:
    wider = with_a_field_more(colour=(bytes, b"red"))
    with pytest.raises(AssertionError, match="which values <class 'bytes'> has"):
        lost_on_the_wire(wider, BASES, ("colour",))


def with_a_proto_field_more(message: str) -> Descriptor:
    """The wire's TaskDefinition after somebody has added a field to one message of task.proto."""
    pool = descriptor_pool.DescriptorPool()

    def add(file: FileDescriptor) -> None:
        for needed in file.dependencies:
            add(needed)
        proto = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(proto)
        for kind in proto.message_type:
            if kind.name == message:
                kind.field.add(name="colour", number=99, type=FieldDescriptor.TYPE_STRING, label=1)
        pool.Add(proto)

    add(task_pb2.DESCRIPTOR)
    return pool.FindMessageTypeByName(MESSAGE.full_name)


@pytest.mark.parametrize(
    "message",
    [
        "TaskDefinition",
        "RoundPolicy",
        "ConsensusPolicy",
        "FedktPolicy",
        "FedauxPolicy",
        "LabelSpace",
    ],
)
def test_a_field_of_the_proto_alone_is_noticed(message: str) -> None:
    found = unmatched(TaskDefinition, with_a_proto_field_more(message))
    assert found == [f"{message}.colour is in no model"]
