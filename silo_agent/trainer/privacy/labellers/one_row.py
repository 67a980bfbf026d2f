"""One row per patient: what a head that counts rows needs for a guarantee that counts patients."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wire.privacy.noise import uniform_below
from wire.privacy.randomness import Bits


def one_row_each(
    patients: npt.NDArray[np.int64], bits: Bits, times: int = 1
) -> npt.NDArray[np.int64]:
    """(times, units): row numbers, one for each patient in the order of their numbers, drawn anew each time.

    A draw looks at nothing but how many rows that one patient has, so exchanging a patient exchanges one row in
    each draw and leaves the others where they are.
    """
    order = np.argsort(patients, kind="stable")
    _, first, count = np.unique(patients[order], return_index=True, return_counts=True)
    # Not quite uniform unless the count divides 2⁶³; no guarantee rests on that.
    drawn = uniform_below(2**63, (times, len(count)), bits) % count
    rows: npt.NDArray[np.int64] = order[first + drawn].astype(np.int64)
    return rows
