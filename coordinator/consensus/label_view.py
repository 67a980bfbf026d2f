"""The labels of a consensus as a silo sees them, which knows some of the classes; and how many rows changed."""

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
    match shape.encoding:
        case Encoding.ONE_HOT:
            return unpack(planes_for(published, shape, known).tobytes(), shape)
        case Encoding.INDEX | Encoding.SCORED:
            labels = unpack(published, shape)
            if len(known) < shape.classes:
                labels[~np.isin(labels, known)] = ABSTAIN
            return labels


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


def changed_rows(previous: Labels | None, current: Labels) -> int:
    """Rows whose label, abstention included, differs; all rows if nothing was published before."""
    if previous is None:
        return current.size
    if previous.shape != current.shape:
        raise ValueError(f"{previous.size} and {current.size} rows are not of one public set")
    return int(np.count_nonzero(previous != current))
