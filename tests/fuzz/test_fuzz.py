"""Bytes from outside end in a documented error or not at all: every decoder, by hypothesis."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from servicers import SERVICERS
from targets import TARGETS, Target

ALL = {**TARGETS, "servicers": SERVICERS}

MAX_BYTES = 4096


@st.composite
def inputs(draw: st.DrawFn, target: Target) -> bytes:
    """Raw bytes, or an accepted input with a few places cut out, doubled, overwritten or put in."""
    seeds = target.seeds()
    if not seeds or draw(st.integers(0, 4)) == 0:
        return draw(st.binary(max_size=MAX_BYTES))
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(data)))
        upto = draw(st.integers(at, min(len(data), at + 64)))
        put = draw(st.binary(max_size=8) | st.just(data[at:upto] * 2))
        data = data[:at] + put + data[upto:]
    return data[:MAX_BYTES]


@pytest.mark.parametrize("name", ALL)
def test_strange_bytes_end_in_a_documented_error(name: str) -> None:
    target = ALL[name]

    @settings(
        max_examples=150,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs(target))
    def survives(data: bytes) -> None:
        target(data)

    survives()


@pytest.mark.parametrize("name", [name for name, target in ALL.items() if target.seeds is not list])
def test_what_the_fuzzers_begin_from_is_accepted(name: str) -> None:
    # Or they would only ever see the first check of a decoder.
    target = ALL[name]
    accepted = 0
    for seed in target.seeds():
        try:
            target.decode(seed)
            accepted += 1
        except target.allowed:
            pass
    assert accepted


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("audit_record", b"[" * 100_000 + b"\n"),
        ("audit_head", b"[" * 100_000),
        ("approvals", b"[" * 100_000 + b"\n"),
        ("task_yaml", b"[" * 5000),
        (
            "task_yaml",
            b"a: &a [x,x,x,x]\n"
            + b"".join(
                b"%c: &%c [%s]\n" % (c + 1, c + 1, b",".join([b"*%c" % c] * 9))
                for c in range(97, 106)
            ),
        ),
        (
            "public_set",
            b"\x93NUMPY\x01\x00\x76\x00"
            + b"{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999,)}".ljust(117)
            + b"\n",
        ),
        ("join_token", b"consilium-join-1." + b"A" * 1_000_000),
        ("certificate_request", b"-----BEGIN CERTIFICATE REQUEST-----\n" + b"A" * 1_000_000),
    ],
)
def test_deep_wide_and_boastful_inputs_end_too(name: str, data: bytes) -> None:
    ALL[name](data)
