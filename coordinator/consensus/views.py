"""What a silo gets to see of a consensus: the classes it knows, one label a row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wire.ballot import ABSTAIN, BallotShape, Encoding, Labels, Packed, class_planes, unpack


def labels_for(published: Packed, shape: BallotShape, known: Sequence[int]) -> Labels:
    """(rows,) labels among the classes `known`; ABSTAIN where there is none, or several claim the row."""
    if shape.encoding is Encoding.INDEX:
        labels = unpack(published, shape)
        return np.where(np.isin(labels, known), labels, ABSTAIN).astype(np.int32)
    planes = class_planes(published, shape)[list(known)]
    claimed = np.unpackbits(planes, axis=1, count=shape.rows).astype(np.bool_)
    single = claimed.sum(axis=0) == 1
    chosen = np.asarray(known, dtype=np.int32)[claimed.argmax(axis=0)]
    return np.where(single, chosen, ABSTAIN).astype(np.int32)
