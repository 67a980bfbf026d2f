"""The threat model points to tests; every one of them exists, no attacker is without, and no answer holds a ballot."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from wire.consilium.v1 import admin_pb2, enrolment_pb2, identity_pb2, registry_pb2, rounds_pb2

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
POINTERS = sorted(set(re.findall(r"tests/[\w/]+\.py(?:::\w+)+", TEXT)))
ATTACKERS = (
    "Curious coordinator",
    "Curious silo",
    "Stolen agent host",
    "Network",
    "Malicious silo",
)


# Calls of the coordinator; the trainer's socket is within a hospital.
SERVICES = [
    service
    for module in (admin_pb2, enrolment_pb2, identity_pb2, registry_pb2, rounds_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
]


def bytes_in(message: Descriptor, seen: set[str]) -> set[str]:
    """Every field of bytes that an answer can hold, at any depth."""
    if message.full_name in seen:
        return set()
    seen.add(message.full_name)
    found = set()
    for field in message.fields:
        if field.type == FieldDescriptor.TYPE_BYTES:
            found.add(field.full_name)
        elif field.message_type is not None:
            found |= bytes_in(field.message_type, seen)
    return found


def test_no_call_of_the_coordinator_hands_out_a_ballot() -> None:
    answers = [method.output_type for service in SERVICES for method in service.methods]
    seen: set[str] = set()
    assert set().union(*(bytes_in(answer, seen) for answer in answers)) == {
        "consilium.v1.Receipt.signature",
        "consilium.v1.FetchConsensusResponse.data",
        "consilium.v1.ExportConsensusResponse.data",
        "consilium.v1.FetchPublicSetResponse.data",
        "consilium.v1.FetchExtractorResponse.data",
    }


def defines(path: Path, names: list[str]) -> bool:
    """Whether a file has the class or function that `names` lead to, outermost first."""
    body: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    for name in names:
        found = [
            node
            for node in body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name == name
        ]
        if not found:
            return False
        body = found[0].body
    return True


@pytest.mark.parametrize("pointer", POINTERS)
def test_a_pointer_leads_to_a_test(pointer: str) -> None:
    path, *names = pointer.split("::")
    assert names[-1].startswith("test_")
    assert (ROOT / path).exists()
    assert defines(ROOT / path, names)


@pytest.mark.parametrize("attacker", ATTACKERS)
def test_every_attacker_has_what_it_sees_what_it_cannot_and_a_proof(attacker: str) -> None:
    section = TEXT.split(f"\n## {attacker}\n")[1].split("\n## ")[0]
    assert re.search(r"\*\*(Sees|Has|Can)\*\*", section)
    assert re.search(r"\*\*Cannot( see)?\*\*", section)
    assert re.search(r"tests/[\w/]+\.py::", section)


def test_a_pointer_to_nothing_would_be_found() -> None:
    here = Path(__file__)
    assert defines(here, ["test_a_pointer_leads_to_a_test"])
    assert not defines(here, ["test_that_was_renamed"])
    assert not defines(here, ["ATTACKERS"])
    assert not defines(here, ["test_a_pointer_leads_to_a_test", "test_inside"])
