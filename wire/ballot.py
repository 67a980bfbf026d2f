"""The ballot codec: hard labels on a public set, packed into bit planes.

A plane holds one bit per row: row 0 is the most significant bit of byte 0, and the bits behind the
last row are zero. `ONE_HOT` has one plane per class; `INDEX` has the bits of the class index, most
significant plane first, with the code C for an abstention; `SCORED` adds to INDEX four planes with
a certainty per row. docs/wire-format.md has an example.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from wire.consilium.v1 import ballot_pb2
from wire.enums import WireEnum
from wire.errors import (
    BALLOT_ENCODING,
    BALLOT_LABEL,
    BALLOT_LENGTH,
    BALLOT_PADDING,
    BALLOT_SCORE,
    Refusal,
)

ABSTAIN: Final = -1
SCORE_PLANES: Final = 4
BEST_SCORE: Final = (1 << SCORE_PLANES) - 1
MOST_SEEN: Final = 16
"""Earlier consensuses of its round that a ballot may name: backups are not restored more often than that."""

Labels: TypeAlias = npt.NDArray[np.int32]
Scores: TypeAlias = npt.NDArray[np.uint8]
"""Certainties 0 to BEST_SCORE."""
Packed: TypeAlias = bytes | memoryview
"""Packed bits; a memoryview spares the copy where they are part of something larger."""
Planes: TypeAlias = npt.NDArray[np.uint8]


class Encoding(WireEnum):
    """How labels become bits."""

    ONE_HOT = "one_hot", ballot_pb2.ENCODING_ONE_HOT
    INDEX = "index", ballot_pb2.ENCODING_INDEX
    SCORED = "scored", ballot_pb2.ENCODING_SCORED

    @classmethod
    def from_proto(cls, number: int) -> Encoding:
        """The encoding of a protocol value; BALLOT_ENCODING if there is none."""
        encoding = cls.by_number(number)
        if encoding is None:
            raise Refusal(BALLOT_ENCODING, actual=number, expected=" or ".join(cls))
        return encoding

    @property
    def one_plane_per_class(self) -> bool:
        """Whether each class has a plane of its own, rather than each bit of the class index."""
        match self:
            case Encoding.ONE_HOT:
                return True
            case Encoding.INDEX | Encoding.SCORED:
                return False

    @property
    def score_planes(self) -> int:
        """Planes behind the labels that say how certain each vote is."""
        match self:
            case Encoding.SCORED:
                return SCORE_PLANES
            case Encoding.ONE_HOT | Encoding.INDEX:
                return 0


@dataclass(frozen=True)
class BallotShape:
    """What decides a ballot's length: rows of the public set, classes, encoding."""

    rows: int
    classes: int
    encoding: Encoding

    def __post_init__(self) -> None:
        if self.rows < 1 or self.classes < 1:
            raise ValueError(f"a ballot needs rows and classes, not {self.rows} and {self.classes}")

    def as_index(self) -> BallotShape:
        """The same rows and classes as INDEX: the shape of a published consensus."""
        return BallotShape(self.rows, self.classes, Encoding.INDEX)

    @property
    def planes(self) -> int:
        """Number of planes: C; ceil(log2(C + 1)); or that and SCORE_PLANES."""
        return self.label_planes + self.encoding.score_planes

    @property
    def label_planes(self) -> int:
        """Planes that say which class; they come first."""
        per_class = self.encoding.one_plane_per_class
        return self.classes if per_class else self.classes.bit_length()

    @property
    def plane_bytes(self) -> int:
        """Length of one plane in bytes."""
        return (self.rows + 7) // 8

    @property
    def size_bytes(self) -> int:
        """Length of a packed ballot in bytes."""
        return self.planes * self.plane_bytes

    def expect_encoding(self, encoding: int) -> None:
        """Refuses (BALLOT_ENCODING) a header whose protocol encoding is not this shape's."""
        actual = Encoding.from_proto(encoding)
        if actual is not self.encoding:
            raise Refusal(BALLOT_ENCODING, actual=actual, expected=self.encoding)

    def expect_length(self, length: int) -> None:
        """Refuses (BALLOT_LENGTH) any length in bytes but this shape's."""
        if length != self.size_bytes:
            raise Refusal(
                BALLOT_LENGTH,
                actual=length,
                rows=self.rows,
                classes=self.classes,
                encoding=self.encoding,
                expected=self.size_bytes,
            )


def pack(labels: npt.ArrayLike, shape: BallotShape) -> bytes:
    """Packs (rows,) integers in [-1, classes), -1 abstaining; BALLOT_LABEL for any other value.

    In a SCORED ballot every vote gets the best score; `pack_scored` takes scores of one's own.
    """
    if shape.encoding.score_planes:
        return pack_scored(labels, np.full(shape.rows, BEST_SCORE, dtype=np.uint8), shape)
    given = np.asarray(labels)
    if given.shape != (shape.rows,) or given.dtype.kind not in "iu":
        raise ValueError(
            f"labels must be {shape.rows} integers, not {given.dtype} of shape {given.shape}"
        )
    if given.min() < ABSTAIN or given.max() >= shape.classes:
        raise Refusal(BALLOT_LABEL, classes=shape.classes)
    codes = given.astype(np.min_scalar_type(shape.classes))
    codes[given == ABSTAIN] = shape.classes
    packed = np.empty((shape.planes, shape.plane_bytes), dtype=np.uint8)
    for position in range(shape.planes):
        if shape.encoding.one_plane_per_class:
            packed[position] = np.packbits(codes == position)
        else:
            weight = shape.planes - 1 - position
            packed[position] = np.packbits(codes & codes.dtype.type(1 << weight))
    return packed.tobytes()


def pack_one_hot(ones: npt.NDArray[np.bool_], shape: BallotShape) -> bytes:
    """Packs any (rows, classes) pattern of ones, as noise produces; `shape` must be ONE_HOT."""
    if shape.encoding is not Encoding.ONE_HOT:
        raise ValueError("only a one-hot ballot can hold an arbitrary pattern of ones")
    if ones.shape != (shape.rows, shape.classes) or ones.dtype != np.bool_:
        raise ValueError(
            f"ones must be bool of shape {(shape.rows, shape.classes)}, "
            f"not {ones.dtype} of shape {ones.shape}"
        )
    return np.packbits(np.ascontiguousarray(ones.T), axis=1).tobytes()


def pack_scored(labels: npt.ArrayLike, scores: npt.ArrayLike, shape: BallotShape) -> bytes:
    """Packs labels as `pack` takes them, each with a certainty from 0 to BEST_SCORE.

    `shape` must be SCORED. The score of a row that abstains is not looked at and kept as 0.
    """
    if shape.encoding is not Encoding.SCORED:
        raise ValueError("only a scored ballot can hold scores")
    index = pack(labels, shape.as_index())
    scored = np.asarray(scores)
    if scored.shape != (shape.rows,) or scored.dtype.kind not in "iu":
        raise ValueError(
            f"scores must be {shape.rows} integers, not {scored.dtype} of shape {scored.shape}"
        )
    kept = np.where(np.asarray(labels) == ABSTAIN, 0, scored)
    if kept.min() < 0 or kept.max() > BEST_SCORE:
        raise ValueError(f"scores must be 0 to {BEST_SCORE}")
    certainty = [np.packbits(kept >> bit & 1 != 0) for bit in reversed(range(SCORE_PLANES))]
    return index + np.stack(certainty).tobytes()


def unpack_scored(data: Packed, shape: BallotShape) -> tuple[Labels, Scores]:
    """The (rows,) labels and scores of a SCORED ballot; refuses what `check` refuses."""
    labels = unpack(data, shape)
    scores = np.zeros(shape.rows, dtype=np.uint8)
    for plane in score_planes(data, shape):
        scores = scores + scores + np.unpackbits(plane, count=shape.rows)
    return labels, scores


def unpack(data: Packed, shape: BallotShape) -> Labels:
    """The (rows,) labels of a ballot, -1 abstaining; refuses what `check` refuses.

    A one-hot ballot with several ones in a row has no label there: that is a ValueError, read it
    with `unpack_one_hot`.
    """
    check(data, shape)
    planes = _planes(data, shape)[: shape.label_planes]
    if shape.encoding.one_plane_per_class:
        planes = _index_planes(planes, shape)
    codes = np.zeros(shape.rows, dtype=np.min_scalar_type(shape.classes))
    for plane in planes:
        np.add(codes, codes, out=codes)
        np.bitwise_or(codes, np.unpackbits(plane, count=shape.rows), out=codes)
    labels = codes.astype(np.int32)
    labels[codes == shape.classes] = ABSTAIN
    return labels


def unpack_one_hot(data: Packed, shape: BallotShape) -> npt.NDArray[np.bool_]:
    """The (rows, classes) pattern of ones of any encoding; refuses what `check` refuses."""
    check(data, shape)
    bits = np.unpackbits(class_planes(data, shape), axis=1, count=shape.rows)
    return bits.view(np.bool_).T


def check(data: Packed, shape: BallotShape) -> None:
    """Refuses bits that are no ballot of this shape, looking at whole bytes only.

    BALLOT_LENGTH: too short or too long. BALLOT_PADDING: ones behind the last row. BALLOT_LABEL: an
    index above C, which ONE_HOT cannot name. BALLOT_SCORE: a row that abstains and has a score.
    """
    planes = _planes(data, shape)
    if np.any(planes[:, -1] & ~_last_byte(shape)):
        raise Refusal(BALLOT_PADDING)
    if shape.encoding.one_plane_per_class:
        return
    if _names_code_above(planes[: shape.label_planes], shape.classes):
        raise Refusal(BALLOT_LABEL, classes=shape.classes)
    if shape.encoding.score_planes:
        abstained = _rows_of_code(planes[: shape.label_planes], shape.classes)
        if np.any(planes[shape.label_planes :] & abstained):
            raise Refusal(BALLOT_SCORE)


def class_planes(data: Packed, shape: BallotShape) -> Planes:
    """One plane per class: (classes, plane_bytes); a read-only view of a ONE_HOT ballot.

    Of the others they are computed; their padding is zero, codes above C are no vote.
    """
    planes = _planes(data, shape)[: shape.label_planes]
    if shape.encoding.one_plane_per_class:
        return planes
    # Each plane splits every set of rows so far in two; sets beyond the last class are not made.
    sets = np.full((1, shape.plane_bytes), 0xFF, dtype=np.uint8)
    sets[0, -1] = _last_byte(shape)
    for position, plane in enumerate(planes):
        remaining = shape.label_planes - 1 - position
        wanted = ((shape.classes - 1) >> remaining) + 1
        split = np.empty((wanted, shape.plane_bytes), dtype=np.uint8)
        np.bitwise_and(sets, ~plane, out=split[0::2])
        np.bitwise_and(sets[: wanted // 2], plane, out=split[1::2])
        sets = split
    return sets


def score_planes(data: Packed, shape: BallotShape) -> Planes:
    """The certainties of a SCORED ballot: (SCORE_PLANES, plane_bytes), most significant first; a view."""
    if shape.encoding is not Encoding.SCORED:
        raise ValueError("only a scored ballot holds scores")
    return _planes(data, shape)[shape.label_planes :]


def digest(data: Packed) -> str:
    """Lower-case hexadecimal SHA-256 of packed bits."""
    return hashlib.sha256(data).hexdigest()


def _planes(data: Packed, shape: BallotShape) -> Planes:
    """A read-only (planes, plane_bytes) view; BALLOT_LENGTH if the data are not that long."""
    shape.expect_length(len(data))
    return np.frombuffer(data, dtype=np.uint8).reshape(shape.planes, shape.plane_bytes)


def _last_byte(shape: BallotShape) -> np.uint8:
    """The bits of a plane's last byte that belong to rows."""
    return np.uint8(0xFF << (-shape.rows % 8) & 0xFF)


def _names_code_above(planes: Planes, limit: int) -> bool:
    """True if the index of any row, padding included, is larger than `limit`."""
    if limit == (1 << len(planes)) - 1:
        return False
    equal = np.full(planes.shape[1], 0xFF, dtype=np.uint8)
    above = np.zeros(planes.shape[1], dtype=np.uint8)
    for position, plane in enumerate(planes):
        if limit >> (len(planes) - 1 - position) & 1:
            equal &= plane
        else:
            above |= equal & plane
            equal &= ~plane
    return bool(above.any())


def _rows_of_code(planes: Planes, code: int) -> Planes:
    """The rows, as one plane, whose index is `code`."""
    rows = np.full(planes.shape[1], 0xFF, dtype=np.uint8)
    for position, plane in enumerate(planes):
        rows &= plane if code >> (len(planes) - 1 - position) & 1 else ~plane
    return rows


def _index_planes(planes: Planes, shape: BallotShape) -> Planes:
    """The INDEX planes of one-hot `planes`; ValueError if a row has several ones."""
    index = np.zeros((shape.as_index().planes, shape.plane_bytes), dtype=np.uint8)
    voted = np.zeros(shape.plane_bytes, dtype=np.uint8)
    for code, plane in enumerate(planes):
        if np.any(voted & plane):
            raise ValueError("the ballot has rows with several ones; read it with unpack_one_hot")
        voted |= plane
        _add_code(index, plane, code)
    _add_code(index, ~voted, shape.classes)
    return index


def _add_code(index: Planes, rows: Planes, code: int) -> None:
    """Writes `code` into the index planes of the given rows, which must be blank so far."""
    for position in range(len(index)):
        if code >> (len(index) - 1 - position) & 1:
            index[position] |= rows
