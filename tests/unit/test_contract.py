"""The protocol buffers contract: what no message may carry, and that every field is documented."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor

from wire.consilium.v1 import (
    admin_pb2,
    ballot_pb2,
    enrolment_pb2,
    identity_pb2,
    privacy_pb2,
    registry_pb2,
    rounds_pb2,
    task_pb2,
    trainer_pb2,
)

FILES: list[FileDescriptor] = [
    module.DESCRIPTOR
    for module in (
        admin_pb2,
        ballot_pb2,
        enrolment_pb2,
        identity_pb2,
        privacy_pb2,
        registry_pb2,
        rounds_pb2,
        task_pb2,
        trainer_pb2,
    )
]

# Every bytes field there is, with the reason it may exist. Floating point has no entry: there is none.
ALLOWED_BYTES = {
    "consilium.v1.Receipt.signature": "an ECDSA signature by the coordinator, about 71 bytes",
    "consilium.v1.CastBallotRequest.data": "packed hard labels, length fixed by the task",
    "consilium.v1.FetchConsensusResponse.data": "packed published labels, downwards only",
    "consilium.v1.ExportConsensusResponse.data": "packed published labels, to an admin",
    "consilium.v1.FetchExtractorResponse.data": "learned from public rows alone, downwards only",
    "consilium.v1.FetchPublicSetResponse.data": "public data, downwards only",
    "consilium.v1.PublishExtractorRequest.data": "learned from public rows alone, from an admin",
    "consilium.v1.PublishPublicSetRequest.data": "public data, from an admin",
    "consilium.v1.ConsensusLabels.data": "packed published labels, to the private side",
    "consilium.v1.VoteResponse.data": "packed hard labels, length fixed by the task",
}
_FLOATS = {FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE}
# Well-known types that could smuggle anything.
_FREE_FORM = {"google.protobuf.Any", "google.protobuf.Struct", "google.protobuf.Value"}


def messages(file: FileDescriptor) -> Iterator[Descriptor]:
    pending = list(file.message_types_by_name.values())
    while pending:
        message = pending.pop()
        pending.extend(message.nested_types)
        yield message


def fields() -> list[FieldDescriptor]:
    return [field for file in FILES for message in messages(file) for field in message.fields]


def forbidden(field: FieldDescriptor) -> str:
    """Why a field may not exist, or an empty string."""
    if field.type in _FLOATS:
        return "a number with a fraction could be a weight, a gradient or a probability"
    if field.type == FieldDescriptor.TYPE_BYTES and field.full_name not in ALLOWED_BYTES:
        return "free-form bytes could be anything"
    if field.message_type is not None and field.message_type.full_name in _FREE_FORM:
        return "a message of any type could be anything"
    return ""


def test_every_proto_file_is_looked_at() -> None:
    on_disk = {path.name for path in Path("protos/consilium/v1").glob("*.proto")}
    assert on_disk == {Path(file.name).name for file in FILES}


@pytest.mark.parametrize("field", fields(), ids=lambda field: field.full_name)
def test_no_field_can_carry_weights_gradients_probabilities_or_rows(field: FieldDescriptor) -> None:
    assert not forbidden(field)


def test_the_allow_list_names_only_fields_that_exist() -> None:
    assert set(ALLOWED_BYTES) <= {field.full_name for field in fields()}


def test_a_field_of_floats_or_bytes_would_be_found() -> None:
    from google.protobuf import descriptor_pb2, descriptor_pool

    proto = descriptor_pb2.FileDescriptorProto(name="bad.proto", package="bad")
    message = proto.message_type.add(name="Leak")
    for number, kind in enumerate((FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_BYTES), 1):
        message.field.add(name=f"f{number}", number=number, type=kind, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(proto)
    leak = pool.FindMessageTypeByName("bad.Leak")
    assert all(forbidden(field) for field in leak.fields)


@pytest.mark.parametrize(
    "path", sorted(Path("protos").rglob("*.proto")), ids=lambda path: path.name
)
def test_every_declaration_is_documented(path: Path) -> None:
    lines = [line.strip() for line in path.read_text().splitlines()]
    declared = [
        index
        for index, line in enumerate(lines)
        if line.startswith(("message ", "enum ", "service ", "rpc ", "oneof "))
        or (line.endswith(";") and " = " in line and not line.startswith("syntax"))
    ]
    assert declared
    undocumented = [lines[i] for i in declared if not lines[i - 1].startswith("//")]
    assert undocumented == []
