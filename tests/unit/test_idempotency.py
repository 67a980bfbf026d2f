"""Which calls a client repeats when the coordinator is unavailable: those whose proto says that it may."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from google.protobuf.descriptor import MethodDescriptor

from wire.net.channels import RetryPolicy
from wire.net.idempotency import SERVICES, is_repeatable

PROTOS = Path(__file__).parents[2] / "protos"
METHODS = [method for service in SERVICES for method in service.methods]

MADE_ONCE = {
    "AdminService.PauseTask": "a task that is held cannot be held: the repetition would be refused",
    "AdminService.RegisterAdmin": "it hands out a token, and a second call is refused",
    "AdminService.RegisterSilo": "it hands out a token, and a second call is refused",
    "RoundsService.Watch": "the agent itself resumes it behind the last revision it saw",
}
"""Every method without an idempotency level, and why it has none."""


def named(method: MethodDescriptor) -> str:
    return f"{method.containing_service.name}.{method.name}"


def test_every_service_in_the_protos_is_looked_at() -> None:
    declared = {
        name
        for path in PROTOS.rglob("*.proto")
        for name in re.findall(r"^service (\w+)", path.read_text(), re.MULTILINE)
    }
    assert declared == {service.name for service in SERVICES}


@pytest.mark.parametrize("method", METHODS, ids=named)
def test_every_call_says_whether_it_may_be_repeated_or_why_not(method: MethodDescriptor) -> None:
    assert is_repeatable(method) != (named(method) in MADE_ONCE)


def test_what_is_made_once_exists() -> None:
    assert set(MADE_ONCE) <= set(map(named, METHODS))


def test_channels_repeat_exactly_the_calls_that_may_be() -> None:
    (policy,) = json.loads(RetryPolicy().service_config())["methodConfig"]
    repeated = {(one["service"], one["method"]) for one in policy["name"]}
    assert repeated == {
        (method.containing_service.full_name, method.name)
        for method in METHODS
        if named(method) not in MADE_ONCE
    }
    assert policy["retryPolicy"]["retryableStatusCodes"] == ["UNAVAILABLE"]


@pytest.mark.parametrize(
    "name",
    [
        "RoundsService.Leave",
        "IdentityService.WhoAmI",
        "RegistryService.FetchExtractor",
        "AdminService.PublishExtractor",
        "AdminService.StartTask",
    ],
)
def test_calls_that_a_list_kept_by_hand_had_forgotten_are_repeated(name: str) -> None:
    assert is_repeatable(next(method for method in METHODS if named(method) == name))
