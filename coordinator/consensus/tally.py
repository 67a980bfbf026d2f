"""Counting ballots: bit-sliced counters fed by carry-save adders over packed planes.

Slice w holds bit w of every (class, row) counter, packed exactly like a one-hot ballot. Adding
ballots is then bitwise arithmetic on whole bytes, about five operations per ballot, without ever
unpacking a vote. A weight or a certainty adds the same bits to higher slices: a vote that counts 5
is one for slice 0 and one for slice 2.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from wire.ballot import (
    BEST_SCORE,
    BallotShape,
    Encoding,
    Packed,
    class_planes,
    score_planes,
)

Counts: TypeAlias = npt.NDArray[np.unsignedinteger]
Bits: TypeAlias = npt.NDArray[np.uint8]

_BATCH: Final = 16
"""Operands kept before they are added; a power of two, so that few carries remain at the end."""
_BLOCK_BYTES: Final = 128 * 1024
"""Size of one operand; the dozen an adder works on then stay in the processor's L2 cache."""
_CACHE_LINE: Final = 64
ROW_BLOCK: Final = 65_536
"""Rows whose counts are held unpacked at one time."""


class Tally:
    """Votes per row and class. Memory grows with the logarithm of the total weight only.

    With `certainties` a vote of a SCORED ballot counts its certainty; else every vote counts once.
    """

    def __init__(self, shape: BallotShape, *, certainties: bool = False) -> None:
        if certainties and shape.encoding is not Encoding.SCORED:
            raise ValueError(f"{shape.encoding} ballots hold no certainties")
        self._shape = shape
        self._certainties = certainties
        self._ballots = 0
        self._most = 0
        self._pending: list[tuple[Bits, int]] = []
        self._slices: list[Bits] = []
        self._carries: list[Bits] = []

    @property
    def shape(self) -> BallotShape:
        """The shape every ballot must have."""
        return self._shape

    @property
    def ballots(self) -> int:
        """Number of ballots added, whatever their weight."""
        return self._ballots

    def add(self, data: Packed, weight: int = 1) -> None:
        """Counts one ballot that passed `wire.ballot.check`; BALLOT_LENGTH if it is no such ballot.

        Each vote adds `weight`, or `weight` times its certainty. The bytes of a one-hot ballot are referred
        to, not copied, until the next batch is added.
        """
        if weight < 0:
            raise ValueError(f"a ballot cannot count {weight}")
        parts, most = self._operands(data)
        self._ballots += 1
        self._most += weight * most
        for level in range(weight.bit_length()):
            if weight >> level & 1:
                self._pending += [(ones, level + place) for ones, place in parts]
        if len(self._pending) >= _BATCH:
            self._add_pending()

    def _operands(self, data: Packed) -> tuple[list[tuple[Bits, int]], int]:
        """Bits with the slice they belong to, and the most that a vote of the ballot counts."""
        voted = class_planes(data, self._shape)
        if not self._certainties:
            return [(voted.reshape(-1), 0)], 1
        certainty = score_planes(data, self._shape)[::-1]
        scored = [((voted & plane).reshape(-1), place) for place, plane in enumerate(certainty)]
        return scored, BEST_SCORE

    def counts(self, start: int = 0, stop: int | None = None) -> Counts:
        """Votes of rows start to stop as (stop - start, classes), in the smallest unsigned type.

        A transposed view: each class is contiguous in memory, so go through classes, not rows.
        """
        stop = self._shape.rows if stop is None else stop
        if not 0 <= start <= stop <= self._shape.rows:
            raise ValueError(f"rows {start} to {stop} are not within 0 to {self._shape.rows}")
        self._add_pending()
        if not self._slices:
            return np.zeros((stop - start, self._shape.classes), dtype=np.uint8)
        first, last = start // 8, (stop + 7) // 8
        highest, *lower = reversed(self._slices)
        counted: Counts = self._unpacked(highest, first, last)
        counted = counted.astype(np.min_scalar_type(self._most), copy=False)
        for bits in lower:
            np.add(counted, counted, out=counted)
            np.bitwise_or(counted, self._unpacked(bits, first, last), out=counted)
        return counted[:, start - 8 * first : stop - 8 * first].T

    def _unpacked(self, bits: Bits, first: int, last: int) -> Bits:
        """Bytes first to last of every plane of a slice, as zeros and ones (classes, rows)."""
        planes = bits.reshape(self._shape.classes, self._shape.plane_bytes)
        return np.unpackbits(planes[:, first:last], axis=1)

    def _add_pending(self) -> None:
        if not self._pending:
            return
        size = self._shape.classes * self._shape.plane_bytes
        missing = self._most.bit_length() - len(self._slices)
        self._slices += _aligned_zeros(missing, size)
        self._carries += _aligned_zeros(2 * missing, min(size, _BLOCK_BYTES))
        for first in range(0, size, _BLOCK_BYTES):
            block = slice(first, first + _BLOCK_BYTES)
            adder = _BlockAdder([bits[block] for bits in self._slices], self._carries)
            for ones, level in self._pending:
                adder.add(ones[block], level)
            adder.settle()
        self._pending.clear()


class _BlockAdder:
    """Adds bits to one block of counters, two operands at a time and a carry upwards.

    `buffers` are two per slice, at least as long as the block. Slice 0, into which nothing carries,
    lends one of its own to intermediate results.
    """

    def __init__(self, slices: list[Bits], buffers: list[Bits]) -> None:
        size = slices[0].size
        self._slices = slices
        self._buffers = [buffer[:size] for buffer in buffers]
        self._waiting: list[Bits | None] = [None] * len(slices)

    def add(self, ones: Bits, weight: int = 0) -> None:
        """Adds 2**weight where a bit is set; may keep `ones` until a second operand comes."""
        bits = self._slices[weight]
        if weight == len(self._slices) - 1:
            # There are slices enough for the total weight, so the highest never overflows.
            np.bitwise_xor(bits, ones, bits)
            return
        other = self._waiting[weight]
        if other is None:
            self._waiting[weight] = ones
            return
        self._waiting[weight] = None
        carry, differing = self._carry(weight + 1), self._buffers[0]
        np.bitwise_and(bits, other, carry)
        np.bitwise_xor(bits, other, differing)
        np.bitwise_xor(differing, ones, bits)
        np.bitwise_and(differing, ones, differing)
        np.bitwise_or(carry, differing, carry)
        self.add(carry, weight + 1)

    def settle(self) -> None:
        """Adds what still waits for a second operand; then the slices hold the whole sum."""
        for weight, bits in enumerate(self._slices[:-1]):
            ones = self._waiting[weight]
            if ones is not None:
                self._waiting[weight] = None
                carry = self._carry(weight + 1)
                np.bitwise_and(bits, ones, carry)
                np.bitwise_xor(bits, ones, bits)
                self.add(carry, weight + 1)

    def _carry(self, weight: int) -> Bits:
        """The free buffer of this weight: while one carry waits, the second takes the other."""
        return self._buffers[2 * weight + (self._waiting[weight] is not None)]


def _aligned_zeros(count: int, size: int) -> list[Bits]:
    """Arrays of zeros that begin on a cache line, where numpy writes a fifth faster."""
    stride = -(-size // _CACHE_LINE) * _CACHE_LINE
    room = np.zeros(count * stride + _CACHE_LINE, dtype=np.uint8)
    first = -room.ctypes.data % _CACHE_LINE
    return [room[first + n * stride :][:size] for n in range(count)]
