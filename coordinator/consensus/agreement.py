"""How far each silo's ballot agrees with what was published, by whole bytes of packed bits.

A row is compared where the silo sees a label and cast one vote. Noise may put several ones into a row of a ONE_HOT
ballot: that row names no class and is not compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from coordinator.consensus.label_view import planes_for
from coordinator.consensus.poll import Poll
from wire.ballot import BallotShape, Encoding, Packed, Planes


@dataclass(frozen=True)
class Agreement:
    """How far a silo's ballot agrees with the consensus."""

    compared: int
    """Rows that have a consensus and the silo's vote."""
    same: int
    """Of these, rows on which both say the same."""


def agreements(poll: Poll, published: Packed, shape: BallotShape) -> Mapping[str, Agreement]:
    """Every ballot of the round against its silo's own view of the consensus."""
    views: dict[tuple[int, ...], _View] = {}
    found = {}
    for silo, payload in poll.ballots:
        known = tuple(poll.known(silo))
        if known not in views:
            views[known] = _View.of(published, shape, known, poll.shape)
        found[silo] = views[known].compare(payload)
    return found


@dataclass(frozen=True, eq=False)
class _View:
    """A consensus as silos of one label space see it, in the planes of their ballots."""

    ballot: BallotShape
    planes: Planes = field(repr=False)
    labelled: Planes = field(repr=False)
    """Rows with a label, as one plane."""

    @classmethod
    def of(
        cls, published: Packed, shape: BallotShape, known: Sequence[int], ballot: BallotShape
    ) -> _View:
        classes = planes_for(published, shape, known)
        labelled = np.bitwise_or.reduce(classes, axis=0)
        match ballot.encoding:
            case Encoding.ONE_HOT:
                return cls(ballot, classes, labelled)
            case Encoding.INDEX | Encoding.SCORED:
                return cls(ballot, _codes(classes, ballot), labelled)

    def compare(self, payload: Packed) -> Agreement:
        """A ballot against this view."""
        planes = np.frombuffer(payload, dtype=np.uint8)[: self.planes.size]
        planes = planes.reshape(self.planes.shape)
        match self.ballot.encoding:
            case Encoding.ONE_HOT:
                return self._compare_one_hot(planes)
            case Encoding.INDEX | Encoding.SCORED:
                return self._compare_codes(planes)

    def _compare_codes(self, planes: Planes) -> Agreement:
        differing = np.zeros_like(self.labelled)
        for mine, theirs in zip(planes, self.planes, strict=True):
            differing |= mine ^ theirs
        abstained = np.bitwise_and.reduce(planes[_ones(self.ballot.classes, self.ballot)], axis=0)
        return Agreement(_rows(self.labelled & ~abstained), _rows(self.labelled & ~differing))

    def _compare_one_hot(self, planes: Planes) -> Agreement:
        voted, several, same = np.zeros((3, *self.labelled.shape), dtype=np.uint8)
        for mine, theirs in zip(planes, self.planes, strict=True):
            several |= voted & mine
            voted |= mine
            same |= mine & theirs
        single = self.labelled & voted & ~several
        return Agreement(_rows(single), _rows(single & same))


def _codes(classes: Planes, shape: BallotShape) -> Planes:
    """One plane per class as the planes of class indices."""
    codes = np.zeros((shape.label_planes, shape.plane_bytes), dtype=np.uint8)
    for code, rows in enumerate(classes):
        for position in _ones(code, shape):
            codes[position] |= rows
    return codes


def _ones(code: int, shape: BallotShape) -> list[int]:
    """The label planes, most significant first, in which a class index has a one."""
    return [at for at in range(shape.label_planes) if code >> (shape.label_planes - 1 - at) & 1]


def _rows(plane: npt.NDArray[np.uint8]) -> int:
    """How many rows a plane holds; whole words at a time, and what is left."""
    words = plane.size // 8 * 8
    counted = np.bitwise_count(plane[:words].view(np.uint64)).sum(dtype=np.int64)
    return int(counted + np.bitwise_count(plane[words:]).sum(dtype=np.int64))
