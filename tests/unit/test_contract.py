"""The protocol buffers contract: what no message may carry, how much each field may hold, what a silo may say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from grpc_health.v1 import health_pb2

from coordinator.api.interceptor import ENROLMENT_TABLE, SERVICE_TABLE
from wire.ballot import MOST_SEEN
from wire.bounds import bounds_of
from wire.chunks import CHUNK_BYTES, SOCKET_MESSAGE_BYTES
from wire.consilium.v1 import (
    admin_pb2,
    ballot_pb2,
    bounds_pb2,
    enrolment_pb2,
    identity_pb2,
    privacy_pb2,
    registry_pb2,
    rounds_pb2,
    task_pb2,
    trainer_pb2,
)
from wire.identity.identity import Role
from wire.net.idempotency import SERVICES

FILES: list[FileDescriptor] = [
    module.DESCRIPTOR
    for module in (
        admin_pb2,
        ballot_pb2,
        bounds_pb2,
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
# Every field of varying length that a silo, or anyone before enrolment, can send to the coordinator.
ALLOWED_FROM_SILOS = {
    "consilium.v1.BallotHeader.consensuses_seen": "digests of what the coordinator itself published",
    "consilium.v1.BallotHeader.digest": "SHA-256 of the ballot, compared with its bits",
    "consilium.v1.BallotHeader.task": "name of a task, looked up",
    "consilium.v1.BallotHeader.task_digest": "SHA-256 of a definition, compared with the task's",
    "consilium.v1.CastBallotRequest.data": "packed hard labels, length fixed by the task",
    "consilium.v1.EnrolRequest.certificate_request_pem": "a public key, signed by its private one",
    "consilium.v1.EnrolRequest.token_id": "handed out by the coordinator, looked up",
    "consilium.v1.EnrolRequest.token_secret": "handed out by the coordinator, compared",
    "consilium.v1.FetchConsensusRequest.task": "name of a task, looked up",
    "consilium.v1.FetchExtractorRequest.digest": "SHA-256 of an extractor, looked up",
    "consilium.v1.FetchPublicSetRequest.digest": "SHA-256 of a public set, looked up",
    "consilium.v1.GetExtractorRequest.digest": "SHA-256 of an extractor, looked up",
    "consilium.v1.GetPublicSetRequest.reference": "digest, name or name@version, looked up",
    "consilium.v1.GetReceiptRequest.task": "name of a task, looked up",
    "consilium.v1.GetSignerRequest.fingerprint": "SHA-256 of a certificate, looked up",
    "consilium.v1.HeartbeatRequest.instance": "compared with the lease's",
    "consilium.v1.LeaveRequest.instance": "compared with the lease's",
    "consilium.v1.ListExtractorsRequest.public_set": "SHA-256 of a public set, looked up",
    "consilium.v1.RenewRequest.certificate_request_pem": "a public key, signed by its private one",
    "consilium.v1.WatchRequest.agent_version": "version of the software, shown to admins",
    "consilium.v1.WatchRequest.instance": "a digest by which a second agent is noticed",
    "grpc.health.v1.HealthCheckRequest.service": "name of a service, looked up",
}
# Every field in which a trainer can say something to its agent, which may be in foreign hands.
ALLOWED_FROM_TRAINERS = {
    "consilium.v1.DescribeResponse.isolation": "how the process is kept from the network",
    "consilium.v1.DescribeResponse.isolation_note": "the same in words, chosen before any data are read",
    "consilium.v1.DescribeResponse.version": "version of the software",
    "consilium.v1.PrepareResponse.task_digest": "computed from the definition the agent sent",
    "consilium.v1.PrivacyDeclaration.delta_picos": "what is declared to the coordinator",
    "consilium.v1.PrivacyDeclaration.epsilon_micros": "what is declared to the coordinator",
    "consilium.v1.PrivacyDeclaration.estimate": "what is declared to the coordinator",
    "consilium.v1.PrivacyDeclaration.mechanism": "what is declared to the coordinator",
    "consilium.v1.PrivacyDeclaration.one_if_not_ppb": "what is declared to the coordinator",
    "consilium.v1.PrivacyDeclaration.one_if_voted_ppb": "what is declared to the coordinator",
    "consilium.v1.PrivacyDeclaration.unit": "what is declared to the coordinator",
    "consilium.v1.PrivacyDeclaration.units_log2": "the silo's size, where the approved task asks for it",
    "consilium.v1.PrivacyTotals.ballots": "ballots that left, which the agent carried",
    "consilium.v1.PrivacyTotals.budget_micros": "of silo.yaml",
    "consilium.v1.PrivacyTotals.estimates": "entries of the ledger",
    "consilium.v1.PrivacyTotals.releases": "entries of the ledger",
    "consilium.v1.PrivacyTotals.spent_micros": "what declared ballots cost together",
    "consilium.v1.PrivacyTotals.task_budget_micros": "of silo.yaml",
    "consilium.v1.PrivacyTotals.task_spent_micros": "what declared ballots cost together",
    "consilium.v1.ProposeResponse.max_public_bytes": "of silo.yaml",
    "consilium.v1.ProposeResponse.task_digest": "computed from the definition the agent sent",
    "consilium.v1.TrainingReport.gpus": "hardware",
    "consilium.v1.TrainingReport.units": "how many patients there are, which neighbouring data sets share",
    "consilium.v1.VoteResponse.budget_spent": "whether the ballot abstains, which the ballot shows",
    "consilium.v1.VoteResponse.data": "the ballot, paid for",
    "consilium.v1.VoteResponse.encoding": "of the task",
    "google.protobuf.Duration.nanos": "how long the agent waited",
    "google.protobuf.Duration.seconds": "how long the agent waited",
}
_FLOATS = {FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE}
_TEXTS = {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}
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


# -- how much a field may hold -------------------------------------------------------------------


def is_map_entry(message: Descriptor) -> bool:
    return bool(message.GetOptions().map_entry)


def missing_bounds(field: FieldDescriptor) -> list[str]:
    """The bounds that a field of varying length must state and does not."""
    bounds, item = bounds_of(field), field
    if field.message_type is not None and is_map_entry(field.message_type):
        item = field.message_type.fields_by_name["key"]
    wanted = {
        "max_items": (field.is_repeated, bounds.max_items),
        "max_length": (item.type in _TEXTS, bounds.max_length),
    }
    return [name for name, (needed, stated) in wanted.items() if needed and not stated]


@pytest.mark.parametrize(
    "field",
    # The fields of a map's entries are bounded where the map is declared.
    [field for field in fields() if not is_map_entry(field.containing_type)],
    ids=lambda field: field.full_name,
)
def test_every_field_of_varying_length_states_its_bounds(field: FieldDescriptor) -> None:
    assert missing_bounds(field) == []


def test_no_map_holds_texts_whose_length_nothing_bounds() -> None:
    """`max_length` of a map bounds its keys, so its values must not be texts."""
    entries = [m for file in FILES for m in messages(file) if is_map_entry(m)]
    assert entries
    assert all(entry.fields_by_name["value"].type not in _TEXTS for entry in entries)


def test_bounds_are_those_the_code_keeps_to() -> None:
    def most(message: Any, name: str) -> tuple[int | None, int | None]:
        bounds = bounds_of(message.DESCRIPTOR.fields_by_name[name])
        return bounds.max_items, bounds.max_length

    assert most(rounds_pb2.CastBallotRequest, "data") == (None, CHUNK_BYTES)
    assert most(admin_pb2.PublishPublicSetRequest, "data") == (None, CHUNK_BYTES)
    assert most(admin_pb2.PublishExtractorRequest, "data") == (None, CHUNK_BYTES)
    assert most(trainer_pb2.ConsensusLabels, "data") == (None, SOCKET_MESSAGE_BYTES)
    assert most(ballot_pb2.BallotHeader, "consensuses_seen") == (MOST_SEEN, 64)


# -- what a silo may say -------------------------------------------------------------------------


def reachable(messages: Iterable[Descriptor]) -> set[Descriptor]:
    """The messages and all that occur inside them."""
    found: set[Descriptor] = set()
    pending = list(messages)
    while pending:
        message = pending.pop()
        if message not in found:
            found.add(message)
            pending += [field.message_type for field in message.fields if field.message_type]
    return found


def from_silos() -> list[Descriptor]:
    """The requests that a silo, or anyone before enrolment, may send to the coordinator."""
    open_to_silos = {
        prefix.strip("/")
        for prefix, roles in {**SERVICE_TABLE, **ENROLMENT_TABLE}.items()
        if roles == "anyone" or Role.SILO in roles
    }
    health = health_pb2.DESCRIPTOR.services_by_name["Health"]
    services = [one for one in (*SERVICES, health) if one.full_name in open_to_silos]
    assert {service.full_name for service in services} == open_to_silos
    return [method.input_type for service in services for method in service.methods]


def of_varying_length(messages: Iterable[Descriptor]) -> set[str]:
    """The fields that can hold more than a number: texts, bytes, lists, maps."""
    return {
        field.full_name
        for message in messages
        for field in message.fields
        if field.is_repeated or field.type in _TEXTS
    }


def test_what_a_silo_can_say_at_length_is_on_the_list_and_nothing_else() -> None:
    assert of_varying_length(reachable(from_silos())) == set(ALLOWED_FROM_SILOS)


def test_all_of_that_is_bounded() -> None:
    for message in reachable(from_silos()):
        if not message.full_name.startswith("google.protobuf."):
            assert [
                missing_bounds(field) for field in message.fields if missing_bounds(field)
            ] == []


def test_what_a_trainer_can_say_to_its_agent_is_on_the_list_and_nothing_else() -> None:
    service = trainer_pb2.DESCRIPTOR.services_by_name["TrainerService"]
    answers = reachable(method.output_type for method in service.methods)
    leaves = {
        field.full_name for message in answers for field in message.fields if not field.message_type
    }
    assert leaves == set(ALLOWED_FROM_TRAINERS)
    texts = of_varying_length(answers)
    assert texts == {
        "consilium.v1.DescribeResponse.isolation_note",
        "consilium.v1.DescribeResponse.version",
        "consilium.v1.PrepareResponse.task_digest",
        "consilium.v1.ProposeResponse.task_digest",
        "consilium.v1.VoteResponse.data",
    }


def test_a_trainer_is_told_nothing_of_public_files_but_their_digests() -> None:
    """What it checks private data against comes from files that have these digests."""
    service = trainer_pb2.DESCRIPTOR.services_by_name["TrainerService"]
    asked = {message.name for message in reachable(method.input_type for method in service.methods)}
    assert "TaskDefinition" in asked
    assert not asked & {"PublicSet", "SetSchema", "Column", "Extractor"}


def test_silos_can_call_what_they_need() -> None:
    assert {"WatchRequest", "CastBallotRequest", "EnrolRequest", "RenewRequest"} <= {
        message.name for message in from_silos()
    }
    assert "CreateTaskRequest" not in {message.name for message in from_silos()}


def test_a_stream_to_the_coordinator_is_a_header_and_data() -> None:
    """A number in a message that may be sent any number of times would be a list of numbers."""
    streamed = [
        method.input_type
        for service in SERVICES
        for method in service.methods
        if method.client_streaming
    ]
    assert streamed
    for message in streamed:
        assert [field.name for field in message.fields] == ["header", "data"]
        assert len(message.oneofs) == 1


# -- that these tests notice ---------------------------------------------------------------------


def leak(kind: int, label: int = FieldDescriptor.LABEL_OPTIONAL) -> Descriptor:
    """A message with one field, as somebody might add it."""
    proto = descriptor_pb2.FileDescriptorProto(name="bad.proto", package="bad", syntax="proto3")
    message = proto.message_type.add(name="Leak")
    message.field.add(name="leak", number=1, type=kind, label=label)  # type: ignore[arg-type]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(proto)
    return pool.FindMessageTypeByName("bad.Leak")


@pytest.mark.parametrize("kind", [FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_BYTES])
def test_a_field_of_floats_or_bytes_would_be_found(kind: int) -> None:
    assert forbidden(leak(kind).fields[0])


@pytest.mark.parametrize(
    ("kind", "label", "missing"),
    [
        (FieldDescriptor.TYPE_STRING, FieldDescriptor.LABEL_OPTIONAL, ["max_length"]),
        (FieldDescriptor.TYPE_BYTES, FieldDescriptor.LABEL_OPTIONAL, ["max_length"]),
        (FieldDescriptor.TYPE_SINT64, FieldDescriptor.LABEL_REPEATED, ["max_items"]),
        (FieldDescriptor.TYPE_STRING, FieldDescriptor.LABEL_REPEATED, ["max_items", "max_length"]),
    ],
)
def test_a_text_or_a_list_without_a_bound_or_from_a_silo_would_be_found(
    kind: int, label: int, missing: list[str]
) -> None:
    added = leak(kind, label)
    assert missing_bounds(added.fields[0]) == missing
    assert of_varying_length([added]) == {"bad.Leak.leak"}


def test_a_single_number_needs_no_bound() -> None:
    added = leak(FieldDescriptor.TYPE_SINT64)
    assert missing_bounds(added.fields[0]) == []
    assert of_varying_length([added]) == set()


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
