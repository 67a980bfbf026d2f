"""Every closed set of names that travels has the numbers of its protobuf enum, and no others."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import pytest
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

import wire
from wire.ballot import Encoding
from wire.consilium.v1 import ballot_pb2, privacy_pb2, registry_pb2, task_pb2
from wire.enums import WireEnum
from wire.privacy.declaration import MechanismName, Unit
from wire.schema import ColumnType, SetKind
from wire.task.consensus_policy import Credibility, RuleName
from wire.task.definition import TaskStatus
from wire.task.methods import FedktLevel, Method

PROTO: dict[type[WireEnum], tuple[EnumTypeWrapper, str]] = {
    ColumnType: (registry_pb2.ColumnType, "COLUMN_TYPE_"),
    Credibility: (task_pb2.Credibility, "CREDIBILITY_"),
    Encoding: (ballot_pb2.Encoding, "ENCODING_"),
    FedktLevel: (task_pb2.FedktLevel, "FEDKT_LEVEL_"),
    MechanismName: (privacy_pb2.Mechanism, "MECHANISM_"),
    Method: (task_pb2.Method, "METHOD_"),
    RuleName: (task_pb2.ConsensusRule, "CONSENSUS_RULE_"),
    SetKind: (registry_pb2.SetKind, "SET_KIND_"),
    TaskStatus: (task_pb2.TaskStatus, "TASK_STATUS_"),
    Unit: (privacy_pb2.Unit, "UNIT_"),
}


def in_wire() -> Iterator[type[WireEnum]]:
    """Every WireEnum, whichever module of the wire declares it."""
    for module in pkgutil.walk_packages(wire.__path__, "wire."):
        importlib.import_module(module.name)
    yield from WireEnum.__subclasses__()


def test_every_enum_of_the_wire_is_looked_at() -> None:
    # Other tests make their own; only those of the wire count.
    assert {kind for kind in in_wire() if kind.__module__.startswith("wire.")} == set(PROTO)


@pytest.mark.parametrize("kind", PROTO, ids=lambda kind: kind.__name__)
def test_members_and_protobuf_values_are_the_same(kind: type[WireEnum]) -> None:
    proto, prefix = PROTO[kind]
    ours = {f"{prefix}{member.name}": member.wire_number for member in kind}
    assert {f"{prefix}UNSPECIFIED": 0, **ours} == dict(proto.items())


def test_a_number_becomes_the_value_it_stands_for() -> None:
    assert Method.value_of(2) == "fedkt"
    assert Method.by_number(2) is Method.FEDKT
    assert Method.FEDKT.to_proto() == task_pb2.METHOD_FEDKT


def test_a_number_that_stands_for_nothing_is_left_for_pydantic_to_refuse_by_name() -> None:
    assert Method.value_of(77) == "unknown (77)"
    assert Method.by_number(0) is None


def test_a_member_without_a_number_does_not_come_to_be() -> None:
    with pytest.raises(TypeError, match="later has no number"):

        class _Forgetful(WireEnum):
            NOW = "now", 1
            LATER = "later"
