"""Ballots keep every label, take exactly the documented bytes, and nothing else is accepted."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from wire import errors
from wire.ballot import (
    ABSTAIN,
    BEST_SCORE,
    SCORE_PLANES,
    BallotShape,
    Encoding,
    check,
    class_planes,
    digest,
    pack,
    pack_one_hot,
    pack_scored,
    score_planes,
    unpack,
    unpack_one_hot,
    unpack_scored,
)
from wire.consilium.v1 import ballot_pb2
from wire.task.definition import TaskDefinition

EXAMPLE = np.array([0, 2, ABSTAIN, 1, 1, 0, 2, 2, 0, 1])
"""The worked example of docs/wire-format.md: ten rows, three classes."""
EXAMPLE_SCORES = np.array([15, 1, 0, 8, 5, 10, 0, 3, 12, 7])


@st.composite
def labelled(draw: st.DrawFn) -> tuple[npt.NDArray[np.int64], BallotShape]:
    classes = draw(st.one_of(st.integers(1, 20), st.sampled_from([127, 128, 255, 256, 300])))
    encoding = draw(st.sampled_from(Encoding))
    labels = draw(hnp.arrays(np.int64, st.integers(1, 70), elements=st.integers(-1, classes - 1)))
    return labels, BallotShape(len(labels), classes, encoding)


@st.composite
def scored(draw: st.DrawFn) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8], BallotShape]:
    labels, shape = draw(labelled())
    scores = draw(hnp.arrays(np.uint8, len(labels), elements=st.integers(0, BEST_SCORE)))
    return labels, scores, BallotShape(shape.rows, shape.classes, Encoding.SCORED)


@st.composite
def index_bits(draw: st.DrawFn) -> tuple[bytes, BallotShape]:
    """Any bytes of an index ballot's length, valid or not."""
    shape = BallotShape(draw(st.integers(1, 40)), draw(st.integers(1, 20)), Encoding.INDEX)
    return draw(st.binary(min_size=shape.size_bytes, max_size=shape.size_bytes)), shape


def refusal(data: bytes, shape: BallotShape) -> errors.Refusal:
    with pytest.raises(errors.Refusal) as raised:
        check(data, shape)
    return raised.value


# -- layout -------------------------------------------------------------------------------------------


def test_the_documented_one_hot_example_has_these_bytes() -> None:
    data = pack(EXAMPLE, BallotShape(10, 3, Encoding.ONE_HOT))
    assert data == bytes([0b10000100, 0b10000000, 0b00011000, 0b01000000, 0b01000011, 0b00000000])


def test_the_documented_index_example_has_these_bytes() -> None:
    data = pack(EXAMPLE, BallotShape(10, 3, Encoding.INDEX))
    assert data == bytes([0b01100011, 0b00000000, 0b00111000, 0b01000000])


def test_the_documented_scored_example_is_the_index_and_these_bytes() -> None:
    shape = BallotShape(10, 3, Encoding.SCORED)
    data = pack_scored(EXAMPLE, EXAMPLE_SCORES, shape)
    assert data[:4] == pack(EXAMPLE, shape.as_index())
    assert data[4:8] == bytes([0b10010100, 0b10000000, 0b10001000, 0b11000000])
    assert data[8:] == bytes([0b10000101, 0b01000000, 0b11001001, 0b01000000])


@pytest.mark.parametrize(
    ("rows", "classes", "one_hot", "index", "scored"),
    [
        (10_000, 10, 12_500, 5_000, 10_000),
        (1, 2, 2, 2, 6),
        (370, 2, 94, 94, 282),
        (9, 255, 510, 16, 24),
        (9, 256, 512, 18, 26),
    ],
)
def test_sizes_are_exact(rows: int, classes: int, one_hot: int, index: int, scored: int) -> None:
    assert BallotShape(rows, classes, Encoding.ONE_HOT).size_bytes == one_hot
    assert BallotShape(rows, classes, Encoding.INDEX).size_bytes == index
    assert BallotShape(rows, classes, Encoding.SCORED).size_bytes == scored


def test_index_planes_hold_every_class_and_the_abstention() -> None:
    for classes in range(1, 300):
        shape = BallotShape(8, classes, Encoding.INDEX)
        assert shape.planes == math.ceil(math.log2(classes + 1))


@pytest.mark.parametrize(("rows", "classes"), [(0, 2), (5, 0), (-1, 3)])
def test_a_shape_without_rows_or_classes_cannot_be_made(rows: int, classes: int) -> None:
    with pytest.raises(ValueError, match="rows and classes"):
        BallotShape(rows, classes, Encoding.INDEX)


def test_a_task_definition_decides_the_shape() -> None:
    definition = TaskDefinition(
        name="t", public_set="u", rows=77, labels=("a", "b", "c"), encoding=Encoding.ONE_HOT
    )
    assert definition.shape == BallotShape(77, 3, Encoding.ONE_HOT)
    assert definition.shape.as_index() == BallotShape(77, 3, Encoding.INDEX)


# -- round trips --------------------------------------------------------------------------------------


@given(labelled())
def test_labels_survive_packing(case: tuple[npt.NDArray[np.int64], BallotShape]) -> None:
    labels, shape = case
    data = pack(labels, shape)
    assert len(data) == shape.size_bytes
    check(data, shape)
    np.testing.assert_array_equal(unpack(data, shape), labels)


@given(labelled())
def test_all_encodings_say_the_same_per_class(
    case: tuple[npt.NDArray[np.int64], BallotShape],
) -> None:
    labels, shape = case
    expected = labels[:, None] == np.arange(shape.classes)
    data = pack(labels, shape)
    np.testing.assert_array_equal(unpack_one_hot(data, shape), expected)
    # Whole bytes are compared: a padding bit set by mistake would be counted as a vote.
    np.testing.assert_array_equal(class_planes(data, shape), np.packbits(expected, axis=0).T)


@given(scored())
def test_scores_survive_packing_where_a_class_is_voted(
    case: tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8], BallotShape],
) -> None:
    labels, scores, shape = case
    data = pack_scored(labels, scores, shape)
    check(data, shape)
    read_labels, read_scores = unpack_scored(data, shape)
    np.testing.assert_array_equal(read_labels, labels)
    np.testing.assert_array_equal(read_scores, np.where(labels == ABSTAIN, 0, scores))
    weights = (1 << np.arange(SCORE_PLANES))[::-1]
    bits = np.unpackbits(score_planes(data, shape), axis=1, count=shape.rows)
    np.testing.assert_array_equal(weights @ bits, read_scores)


def test_labels_without_scores_of_their_own_have_the_best() -> None:
    shape = BallotShape(10, 3, Encoding.SCORED)
    labels, scores = unpack_scored(pack(EXAMPLE, shape), shape)
    assert labels.tolist() == EXAMPLE.tolist()
    assert scores.tolist() == [0 if label == ABSTAIN else BEST_SCORE for label in EXAMPLE]


@given(hnp.arrays(np.bool_, hnp.array_shapes(min_dims=2, max_dims=2, max_side=40)))
def test_any_pattern_of_ones_survives_one_hot_packing(ones: npt.NDArray[np.bool_]) -> None:
    shape = BallotShape(ones.shape[0], ones.shape[1], Encoding.ONE_HOT)
    data = pack_one_hot(ones, shape)
    check(data, shape)
    np.testing.assert_array_equal(unpack_one_hot(data, shape), ones)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
def test_labels_may_be_of_any_integer_type(dtype: npt.DTypeLike) -> None:
    shape = BallotShape(3, 3, Encoding.INDEX)
    labels = np.array([2, 0, 1], dtype=dtype)
    assert unpack(pack(labels, shape), shape).tolist() == [2, 0, 1]


def test_a_memoryview_is_read_like_bytes() -> None:
    shape = BallotShape(10, 3, Encoding.INDEX)
    stored = b"header" + pack(EXAMPLE, shape)
    np.testing.assert_array_equal(unpack(memoryview(stored)[6:], shape), EXAMPLE)


def test_class_planes_of_a_one_hot_ballot_are_not_copied() -> None:
    shape = BallotShape(10, 3, Encoding.ONE_HOT)
    data = pack(EXAMPLE, shape)
    assert np.shares_memory(class_planes(data, shape), np.frombuffer(data, dtype=np.uint8))


def test_the_digest_is_the_sha256_of_the_bits() -> None:
    assert digest(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


# -- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize("change", [-1, 1])
def test_a_ballot_of_another_length_is_refused(encoding: Encoding, change: int) -> None:
    shape = BallotShape(10, 3, encoding)
    refused = refusal(bytes(shape.size_bytes + change), shape)
    assert refused.is_a(errors.BALLOT_LENGTH)
    assert f"{shape.size_bytes + change} bytes" in refused.sentence
    assert f"as {encoding} make {shape.size_bytes}" in refused.sentence


@pytest.mark.parametrize("encoding", Encoding)
def test_a_bit_behind_the_last_row_is_refused_in_every_plane(encoding: Encoding) -> None:
    shape = BallotShape(10, 3, encoding)
    for plane in range(shape.planes):
        for bit in range(6):
            data = bytearray(pack(EXAMPLE, shape))
            data[plane * 2 + 1] |= 1 << bit
            assert refusal(bytes(data), shape).is_a(errors.BALLOT_PADDING)


@given(index_bits())
def test_a_code_is_refused_exactly_when_it_is_above_the_abstention(
    case: tuple[bytes, BallotShape],
) -> None:
    data, shape = case
    planes = np.frombuffer(data, dtype=np.uint8).reshape(shape.planes, -1)
    bits = np.unpackbits(planes, axis=1)
    weights = 1 << np.arange(shape.planes)[::-1]
    if bits[:, shape.rows :].any():
        assert refusal(data, shape).is_a(errors.BALLOT_PADDING)
    elif (weights @ bits > shape.classes).any():
        assert refusal(data, shape).is_a(errors.BALLOT_LABEL)
    else:
        check(data, shape)


@pytest.mark.parametrize("classes", range(1, 20))
def test_each_code_above_the_abstention_is_refused_and_no_other(classes: int) -> None:
    shape = BallotShape(8, classes, Encoding.INDEX)
    for code in range(1 << shape.planes):
        bits = reversed(range(shape.planes))
        data = bytes(0xFF if code >> bit & 1 else 0 for bit in bits)
        if code > classes:
            assert refusal(data, shape).is_a(errors.BALLOT_LABEL), code
        else:
            check(data, shape)


def test_unpacking_refuses_what_the_check_refuses() -> None:
    shape = BallotShape(8, 4, Encoding.INDEX)
    for read in (unpack, unpack_one_hot):
        with pytest.raises(errors.Refusal, match="beyond the 4"):
            read(b"\xff\xff\xff", shape)
    with pytest.raises(errors.Refusal, match="beyond the 4"):
        unpack_scored(b"\xff" * 7, BallotShape(8, 4, Encoding.SCORED))


@given(scored(), st.integers(0, SCORE_PLANES - 1))
def test_a_score_is_refused_exactly_where_the_row_abstains(
    case: tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8], BallotShape], plane: int
) -> None:
    labels, scores, shape = case
    data = pack_scored(labels, scores, shape)
    for row, label in enumerate(labels):
        altered = bytearray(data)
        altered[(shape.label_planes + plane) * shape.plane_bytes + row // 8] ^= 0x80 >> row % 8
        if label == ABSTAIN:
            assert refusal(bytes(altered), shape).is_a(errors.BALLOT_SCORE)
        else:
            check(bytes(altered), shape)


@pytest.mark.parametrize(
    ("scores", "sentence"),
    [
        (np.array([16, 0, 0]), "0 to 15"),
        (np.array([0, -1, 0]), "0 to 15"),
        (np.zeros(2, dtype=int), "scores must be 3 integers"),
        (np.zeros(3), "scores must be 3 integers"),
    ],
)
def test_scores_of_another_form_cannot_be_packed(
    scores: npt.NDArray[np.generic], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        pack_scored(np.array([0, 1, 0]), scores, BallotShape(3, 2, Encoding.SCORED))


def test_other_encodings_hold_no_scores() -> None:
    shape = BallotShape(3, 2, Encoding.INDEX)
    with pytest.raises(ValueError, match="only a scored ballot"):
        pack_scored(np.zeros(3, dtype=int), np.zeros(3, dtype=int), shape)
    with pytest.raises(ValueError, match="only a scored ballot"):
        unpack_scored(pack(np.zeros(3, dtype=int), shape), shape)


@pytest.mark.parametrize("value", [ballot_pb2.ENCODING_UNSPECIFIED, 7])
def test_an_unknown_encoding_is_refused(value: int) -> None:
    with pytest.raises(errors.Refusal) as raised:
        Encoding.from_proto(value)
    assert raised.value.is_a(errors.BALLOT_ENCODING)


@pytest.mark.parametrize("encoding", Encoding)
def test_encodings_translate_to_the_protocol_and_back(encoding: Encoding) -> None:
    assert Encoding.from_proto(encoding.to_proto()) is encoding


def test_a_header_with_another_encoding_than_the_tasks_is_refused() -> None:
    shape = BallotShape(10, 3, Encoding.INDEX)
    shape.expect_encoding(ballot_pb2.ENCODING_INDEX)
    with pytest.raises(errors.Refusal, match="encoding one_hot is not the task's index"):
        shape.expect_encoding(ballot_pb2.ENCODING_ONE_HOT)
    with pytest.raises(
        errors.Refusal, match="encoding 9 is not the task's one_hot or index or scored"
    ):
        shape.expect_encoding(9)


@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize("label", [3, -2, 256, -(2**40)])
def test_a_label_outside_the_label_space_cannot_be_packed(encoding: Encoding, label: int) -> None:
    with pytest.raises(errors.Refusal) as raised:
        pack(np.array([0, label]), BallotShape(2, 3, encoding))
    assert raised.value.is_a(errors.BALLOT_LABEL)


@pytest.mark.parametrize(
    "labels", [np.zeros(3), np.zeros(4, dtype=int), np.zeros((3, 1), dtype=int)]
)
def test_labels_of_another_form_cannot_be_packed(labels: npt.NDArray[np.generic]) -> None:
    with pytest.raises(ValueError, match="labels must be 3 integers"):
        pack(labels, BallotShape(3, 2, Encoding.INDEX))


def test_a_pattern_of_ones_needs_the_one_hot_encoding_and_the_right_form() -> None:
    with pytest.raises(ValueError, match="only a one-hot ballot"):
        pack_one_hot(np.zeros((3, 2), dtype=np.bool_), BallotShape(3, 2, Encoding.INDEX))
    with pytest.raises(ValueError, match="ones must be bool of shape"):
        pack_one_hot(np.zeros((2, 3), dtype=np.bool_), BallotShape(3, 2, Encoding.ONE_HOT))


def test_rows_with_several_ones_have_no_label_to_unpack() -> None:
    shape = BallotShape(2, 2, Encoding.ONE_HOT)
    data = pack_one_hot(np.array([[True, True], [False, True]]), shape)
    with pytest.raises(ValueError, match="several ones"):
        unpack(data, shape)
