"""What a silo gets to see of a consensus: the classes it knows, one label a row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wire.ballot import (
    ABSTAIN,
    BallotShape,
    Encoding,
    Labels,
    Packed,
    Planes,
    class_planes,
    unpack,
)


def labels_for(published: Packed, shape: BallotShape, known: Sequence[int]) -> Labels:
    """(rows,) labels among the classes `known`; ABSTAIN where there is none, or several claim the row."""
    if shape.encoding is not Encoding.ONE_HOT:
        labels = unpack(published, shape)
        if len(known) < shape.classes:
            labels[~np.isin(labels, known)] = ABSTAIN
        return labels
    return unpack(planes_for(published, shape, known).tobytes(), shape)


def planes_for(published: Packed, shape: BallotShape, known: Sequence[int]) -> Planes:
    """The same as one plane per class of the task, (classes, plane_bytes); no row has two ones."""
    claimed = class_planes(published, shape)
    once, several = np.zeros((2, shape.plane_bytes), dtype=np.uint8)
    for index in known:
        several |= once & claimed[index]
        once |= claimed[index]
    seen = np.zeros_like(claimed)
    seen[list(known)] = claimed[list(known)] & ~several
    return seen
