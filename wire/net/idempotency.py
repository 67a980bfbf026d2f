"""Which calls may be repeated when their answer was lost: those whose proto states an `idempotency_level`."""

from __future__ import annotations

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions

from wire.consilium.v1 import (
    admin_pb2,
    enrolment_pb2,
    identity_pb2,
    registry_pb2,
    rounds_pb2,
    trainer_pb2,
)

SERVICES: tuple[ServiceDescriptor, ...] = tuple(
    service
    for module in (
        admin_pb2,
        enrolment_pb2,
        identity_pb2,
        registry_pb2,
        rounds_pb2,
        trainer_pb2,
    )
    for service in module.DESCRIPTOR.services_by_name.values()
)
"""Every service of the protocol."""


def is_repeatable(method: MethodDescriptor) -> bool:
    """True if calling a method twice has the effect of calling it once."""
    level = method.GetOptions().idempotency_level
    return level in (MethodOptions.IDEMPOTENT, MethodOptions.NO_SIDE_EFFECTS)


def repeatable_methods() -> tuple[MethodDescriptor, ...]:
    """Every such method of every service."""
    return tuple(
        method for service in SERVICES for method in service.methods if is_repeatable(method)
    )
