"""FedKT inside one silo."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from silo_agent.models.protocol import Labels
from silo_agent.trainer.fedct import CoTraining
from wire.methods import FedktPolicy


def consistent_labels(
    training: CoTraining, patients: npt.NDArray[np.int64], policy: FedktPolicy
) -> Labels:
    """(rows,) the label all students agree on, -1 where they do not."""
    raise NotImplementedError
