"""Numbers that arithmetic cannot carry off: what every private model makes of rows before it calculates with them.

Both sides may be hostile. A public column that holds 1e308 has an infinite variance, and infinity over infinity is
NaN, which no clipping bounds: one patient could then move a sum as far as floats go. So rows are made finite, and
small enough to be squared and added up, before anything else; and contributions are looked at once more right before
they are summed (`outer_within`).
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

LARGEST: Final = 1e100
"""Numbers further from 0 count as this far: the squares of any number of them still add up."""


def finite_rows(rows: npt.NDArray[Any], largest: float = LARGEST) -> Floats:
    """(n, d) flat float64 rows, NaN being 0 and nothing further from 0 than `largest`."""
    flat = np.asarray(rows, dtype=np.float64).reshape(len(rows), int(np.prod(rows.shape[1:])))
    return finite(flat, largest)


def finite(values: npt.NDArray[Any], largest: float = LARGEST) -> Floats:
    """The same shape in float64, NaN being 0 and nothing further from 0 than `largest`."""
    known = np.nan_to_num(np.asarray(values, dtype=np.float64), nan=0.0)
    return np.asarray(np.clip(known, -largest, largest))


def outer_within(rows: Floats, parts: Floats, limits: Floats) -> tuple[Floats, Floats]:
    """Rows (n, d) and parts (n, k), both 0 where ‖row‖·‖part‖ is not a number up to the row's limit.

    The last look before Σ row ⊗ part is taken over all patients.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.sum(rows**2, axis=1)) * np.sqrt(np.sum(parts**2, axis=1))
        sound = (lengths <= limits)[:, np.newaxis]
    if sound.all():
        return rows, parts
    return np.where(sound, rows, 0.0), np.where(sound, parts, 0.0)
