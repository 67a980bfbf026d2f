"""Fields that hold more than their proto allows are found, at any depth, and nothing the sender wrote is repeated."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from hypothesis import given
from hypothesis import strategies as st

from wire.bounds import Violation, first_violation, require_bounded
from wire.chunks import CHUNK_BYTES
from wire.consilium.v1 import admin_pb2, ballot_pb2, rounds_pb2, task_pb2
from wire.errors import FIELD_TOO_LONG, Refusal
from wire.task.definition import TaskDefinition

DIGEST = "0f" * 32
WIDEST = TaskDefinition(
    name="n" * 63,
    public_set="s" * 63 + "@1234567",
    labels=tuple(f"{n:é>200}" for n in range(100)),
    silos=tuple(f"s{n}" for n in range(1000)),
    consensus={"rule": "weighted", "weights": {f"s{n}": 1 for n in range(1000)}},
)


def seen(*digests: str) -> rounds_pb2.CastBallotRequest:
    return rounds_pb2.CastBallotRequest(
        header=ballot_pb2.BallotHeader(task="t", consensuses_seen=digests)
    )


def created(**values: object) -> admin_pb2.CreateTaskRequest:
    return admin_pb2.CreateTaskRequest(definition=task_pb2.TaskDefinition(**values))


@pytest.mark.parametrize(
    "message",
    [
        rounds_pb2.WatchRequest(),
        rounds_pb2.WatchRequest(instance="i" * 64, agent_version="0.1.0"),
        rounds_pb2.CastBallotRequest(data=bytes(CHUNK_BYTES)),
        seen(*[DIGEST] * 16),
        admin_pb2.CreateTaskRequest(definition=WIDEST.to_proto()),
        health_pb2.HealthCheckRequest(service="consilium.v1.RoundsService"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_keeps_to_its_bounds_passes(message: Message) -> None:
    assert first_violation(message) is None
    require_bounded(message)


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (
            rounds_pb2.WatchRequest(instance="i" * 65),
            Violation("WatchRequest.instance", 65, 64, "characters"),
        ),
        (
            rounds_pb2.CastBallotRequest(data=bytes(CHUNK_BYTES + 1)),
            Violation("CastBallotRequest.data", CHUNK_BYTES + 1, CHUNK_BYTES, "bytes"),
        ),
        (
            health_pb2.HealthCheckRequest(service="x" * 129),
            Violation("HealthCheckRequest.service", 129, 128, "characters"),
        ),
        (seen(*[DIGEST] * 17), Violation("BallotHeader.consensuses_seen", 17, 16, "items")),
        (
            seen(DIGEST, DIGEST + "0"),
            Violation("BallotHeader.consensuses_seen", 65, 64, "characters"),
        ),
        (
            created(labels=["a", "é" * 201]),
            Violation("TaskDefinition.labels", 201, 200, "characters"),
        ),
        (
            created(consensus=task_pb2.ConsensusPolicy(weights={"n" * 64: 1})),
            Violation("ConsensusPolicy.weights", 64, 63, "characters"),
        ),
        (
            created(label_spaces={"north": task_pb2.LabelSpace(labels=["a"] * 4097)}),
            Violation("LabelSpace.labels", 4097, 4096, "items"),
        ),
        (
            created(label_spaces={f"s{n}": task_pb2.LabelSpace() for n in range(4097)}),
            Violation("TaskDefinition.label_spaces", 4097, 4096, "items"),
        ),
    ],
    ids=lambda value: f"{value.field}-{value.unit}" if isinstance(value, Violation) else "",
)
def test_what_holds_too_much_is_named(message: Message, found: Violation) -> None:
    assert first_violation(message) == found


def test_a_refusal_says_which_field_and_how_much_and_repeats_nothing() -> None:
    with pytest.raises(Refusal) as caught:
        require_bounded(rounds_pb2.WatchRequest(instance="secret" * 100))
    assert caught.value.is_a(FIELD_TOO_LONG)
    assert caught.value.sentence == (
        "WatchRequest.instance holds 600 characters; at most 64 are taken."
    )
    assert "secret" not in caught.value.sentence + caught.value.hint


@given(text=st.text(max_size=100))
def test_a_text_is_measured_in_characters(text: str) -> None:
    found = first_violation(rounds_pb2.WatchRequest(instance=text))
    assert (found is None) == (len(text) <= 64)
