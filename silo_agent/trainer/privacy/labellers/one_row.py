"""One row per patient: what a head that counts rows needs for a guarantee that counts patients."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from wire.privacy.noise import uniform_below
from wire.privacy.randomness import Bits

NO_ROW: Final = -1


def one_row_each(
    patients: npt.NDArray[np.int64], units: int, bits: Bits, times: int = 1
) -> npt.NDArray[np.int64]:
    """(times, units): row numbers, one for each patient in the order of their numbers, drawn anew each time.

    A draw looks at nothing but how many rows that one patient has and is independent of all others, so exchanging a
    patient exchanges one row in each draw. Patients without rows come last: `NO_ROW`.
    """
    order = np.append(np.argsort(patients, kind="stable"), NO_ROW)
    _, numbers = np.unique(patients, return_inverse=True)
    count = np.bincount(numbers, minlength=units)
    first = np.cumsum(count) - count
    # Not quite uniform unless the count divides 2⁶³; no guarantee rests on that.
    drawn = uniform_below(2**63, (times, len(count)), bits) % np.maximum(count, 1)
    rows: npt.NDArray[np.int64] = order[np.where(count > 0, first + drawn, -1)].astype(np.int64)
    return rows
