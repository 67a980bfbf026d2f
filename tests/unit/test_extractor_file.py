"""The file of an extractor: the same content is the same bytes, and nothing else is ever opened."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wire.errors import EXTRACTOR_INVALID, Refusal
from wire.extractor_file import (
    MAX_BYTES,
    ExtractorFile,
    ExtractorHeader,
    ExtractorKind,
    read_extractor,
    write_extractor,
)

FORMS: dict[ExtractorKind, dict[str, Any]] = {
    ExtractorKind.PCA: {"row_shape": (2, 3), "dimensions": 4},
    ExtractorKind.TFIDF_SVD: {"row_shape": (7,), "dimensions": 2},
    ExtractorKind.DENOISING: {"row_shape": (5,), "dimensions": 3, "widths": (4,)},
    ExtractorKind.CONTRASTIVE: {"row_shape": (5, 6, 2), "dimensions": 3, "widths": (2, 4)},
}
BEGIN = 12
"""Magic and length of the header."""


def header(kind: ExtractorKind = ExtractorKind.PCA, **changed: Any) -> ExtractorHeader:
    values = {"public_set": "ab" * 32, "public_norm": 1.5, "seed": 3, "steps": 0, **FORMS[kind]}
    return ExtractorHeader(**{"kind": kind, **values, **changed})


def content(kind: ExtractorKind = ExtractorKind.PCA) -> ExtractorFile:
    draw = np.random.default_rng(1)
    arrays = {stored.name: draw.random(stored.shape) + 0.1 for stored in header(kind).layout}
    return ExtractorFile.of(header(kind), **arrays)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "extractor"


def written(path: Path, kind: ExtractorKind = ExtractorKind.PCA) -> bytes:
    write_extractor(content(kind), path)
    return path.read_bytes()


def with_header(whole: bytes, **changed: object) -> bytes:
    """The file with other values in its header, written as Consilium writes it."""
    (length,) = struct.unpack_from("<I", whole, 8)
    values = {**json.loads(whole[BEGIN : BEGIN + length]), **changed}
    text = json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
    return whole[:8] + struct.pack("<I", len(text)) + text + whole[BEGIN + length :]


def refused(path: Path, data: bytes) -> str:
    """Why these bytes are not read."""
    path.write_bytes(data)
    with pytest.raises(Refusal) as refusal:
        read_extractor(path)
    assert refusal.value.is_a(EXTRACTOR_INVALID)
    return refusal.value.sentence


@pytest.mark.parametrize("kind", ExtractorKind)
def test_what_was_written_is_read(path: Path, kind: ExtractorKind) -> None:
    whole = written(path, kind)
    assert len(whole) == header(kind).size_bytes
    read = read_extractor(path)
    assert read.header == header(kind)
    assert list(read.arrays) == list(content(kind).arrays)
    for name, array in content(kind).arrays.items():
        np.testing.assert_array_equal(read.arrays[name], array)
        assert not read.arrays[name].flags.writeable


@pytest.mark.parametrize("kind", ExtractorKind)
def test_the_same_content_is_the_same_bytes(path: Path, kind: ExtractorKind) -> None:
    first = written(path, kind)
    mixed = ExtractorFile(header(kind), dict(reversed(content(kind).arrays.items())))
    write_extractor(mixed, path)
    assert path.read_bytes() == first
    write_extractor(read_extractor(path), path)
    assert path.read_bytes() == first


def test_the_shapes_follow_from_the_header() -> None:
    layout = {stored.name: stored.shape for stored in header(ExtractorKind.CONTRASTIVE).layout}
    # 5×6 pixels become 3×3 and then 2×2.
    assert layout == {
        "mean": (2,),
        "scale": (2,),
        "weight_1": (2, 2, 3, 3),
        "bias_1": (2,),
        "weight_2": (4, 2, 3, 3),
        "bias_2": (4,),
        "weight_3": (3, 4 * 2 * 2),
        "bias_3": (3,),
    }


def test_a_mean_keeps_its_precision(path: Path) -> None:
    arrays = dict(content().arrays)
    arrays["mean"] = np.full(6, 1e9 + 0.25)
    write_extractor(ExtractorFile.of(header(), **arrays), path)
    np.testing.assert_array_equal(read_extractor(path).arrays["mean"], np.full(6, 1e9 + 0.25))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"version": 2}, "no known kind"),
        ({"kind": "pickle"}, "no known kind"),
        ({"surprise": 1}, "no known kind"),
        ({"public_set": "AB" * 32}, "no known kind"),
        ({"public_set": "ab" * 32 + "\n"}, "no known kind"),
        ({"public_norm": 0.0}, "no known kind"),
        ({"public_norm": -1.5}, "no known kind"),
        ({"public_norm": 2}, "not written as"),
        ({"widths": [4]}, "no known kind"),
        ({"dimensions": 0}, "no known kind"),
        ({"dimensions": 5}, "length"),
        ({"row_shape": [2, 2]}, "length"),
        ({"row_shape": [2**32]}, "no known kind"),
        ({"row_shape": [2**31] * 8}, "length"),
        ({"row_shape": [6], "kind": "tfidf_svd"}, "length"),
        ({"row_shape": [2, 3], "kind": "tfidf_svd"}, "no known kind"),
        ({"kind": "contrastive"}, "no known kind"),
        ({"kind": "contrastive", "row_shape": [6], "widths": [2]}, "no known kind"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(
    path: Path, changed: dict[str, object], why: str
) -> None:
    assert why in refused(path, with_header(written(path), **changed))


def test_one_content_has_one_spelling(path: Path) -> None:
    whole = written(path)
    (length,) = struct.unpack_from("<I", whole, 8)
    spaced = whole[BEGIN : BEGIN + length].replace(b'":', b'": ', 1)
    respelt = whole[:8] + struct.pack("<I", len(spaced)) + spaced + whole[BEGIN + length :]
    assert "not written as" in refused(path, respelt)


def test_other_lengths_and_beginnings_are_refused(path: Path) -> None:
    whole = written(path)
    assert "length" in refused(path, whole + b"\0")
    assert "length" in refused(path, whole[:-1])
    assert "begin" in refused(path, b"PK" + whole[2:])
    assert "begin" in refused(path, whole[:7] + b"\x02" + whole[8:])
    assert "begin" in refused(path, b"")
    assert "header" in refused(path, whole[:10])
    assert "sensible length" in refused(path, whole[:8] + struct.pack("<I", 4097) + whole[BEGIN:])
    deep = b"[" * 4000
    assert "no known kind" in refused(path, whole[:8] + struct.pack("<I", 4000) + deep)


def test_numbers_no_network_could_have_are_refused(path: Path) -> None:
    whole = written(path)
    for number in (np.nan, np.inf):
        assert "NaN" in refused(path, whole[:-4] + np.float32(number).tobytes())
    scale = whole.index(content().arrays["scale"].tobytes())
    for number in (0.0, -1.0):
        zeroed = whole[:scale] + np.float64(number).tobytes() + whole[scale + 8 :]
        assert "scale" in refused(path, zeroed)


def test_other_arrays_are_not_written() -> None:
    arrays = dict(content().arrays)
    for wrong in (
        {**arrays, "more": np.zeros(1)},
        {name: array for name, array in arrays.items() if name != "mean"},
        {**arrays, "mean": np.zeros(5)},
    ):
        with pytest.raises(Refusal, match="not those of its kind"):
            ExtractorFile.of(header(), **wrong)


def test_a_file_beyond_the_bound_is_refused_unread(path: Path) -> None:
    wide = header(row_shape=(2**14,), dimensions=2049)
    assert wide.size_bytes > MAX_BYTES
    path.write_bytes(with_header(written(path), row_shape=[2**14], dimensions=2049))
    # A sparse file of exactly the announced length: only the bound stops it.
    os.truncate(path, wide.size_bytes)
    tracemalloc.start()
    try:
        with pytest.raises(Refusal, match="length"):
            read_extractor(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    kind=st.sampled_from(ExtractorKind),
    edits=st.lists(st.tuples(st.integers(0, 600), st.binary(max_size=6)), min_size=1, max_size=4),
    cut=st.integers(0, 40),
)
def test_mutated_bytes_are_read_or_refused_and_cost_no_memory(
    tmp_path: Path, kind: ExtractorKind, edits: list[tuple[int, bytes]], cut: int
) -> None:
    path = tmp_path / "mutated"
    data = bytearray(written(path, kind))
    for position, replacement in edits:
        data[position : position + len(replacement)] = replacement
    mutated = bytes(data[: len(data) - cut])
    path.write_bytes(mutated)
    read, refusals = None, []
    tracemalloc.start()
    try:
        read = read_extractor(path)
    except Refusal as refusal:
        refusals.append(refusal)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1 << 20
    assert all(refusal.is_a(EXTRACTOR_INVALID) for refusal in refusals)
    if read is not None:
        write_extractor(read, path)
        assert path.read_bytes() == mutated
