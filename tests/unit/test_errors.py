"""The error catalogue: complete, documented, and the same on both ends of a call."""

from __future__ import annotations

import string
from pathlib import Path

import grpc
import pytest

from wire.errors import CATALOGUE, ROUND_CLOSED, Fault, Refusal, catalogue_page, from_rpc


def filled(fault: Fault) -> Refusal:
    names = {
        name
        for template in (fault.sentence, fault.hint)
        for _, name, _, _ in string.Formatter().parse(template)
        if name
    }
    return Refusal(fault, **{name: f"<{name}>" for name in names})


class Failed(grpc.aio.AioRpcError):
    """What a client's call raises when a server refused with `refusal`."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(
            refusal.status,
            grpc.aio.Metadata(),
            grpc.aio.Metadata(*refusal.metadata()),
            refusal.sentence,
        )


@pytest.mark.parametrize("fault", CATALOGUE.values(), ids=lambda fault: fault.code)
def test_every_fault_says_what_happened_and_what_to_do(fault: Fault) -> None:
    refusal = filled(fault)
    assert refusal.sentence.endswith(".")
    assert refusal.hint
    assert fault.status is not grpc.StatusCode.OK


@pytest.mark.parametrize("fault", CATALOGUE.values(), ids=lambda fault: fault.code)
def test_a_client_reads_the_refusal_the_server_raised(fault: Fault) -> None:
    sent = filled(fault)
    received = from_rpc(Failed(sent))
    assert received is not None
    assert (received.code, received.sentence, received.hint) == (
        sent.code,
        sent.sentence,
        sent.hint,
    )
    assert received.is_a(fault)


def test_an_error_of_the_transport_is_no_refusal() -> None:
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "Socket closed"
    )
    assert from_rpc(error) is None


def test_a_hint_survives_metadata_that_must_be_ascii() -> None:
    refusal = Refusal(ROUND_CLOSED, task="täsk", round=1)
    assert all(value.isascii() for _, value in refusal.metadata())


def test_the_documentation_lists_every_fault() -> None:
    assert Path("docs/errors.md").read_text() == catalogue_page() + "\n"
