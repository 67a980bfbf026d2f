"""How many labels of a ballot one unit of privacy can change: proved, or estimated as the papers do.

Only `worst_case` is a proof. `stability_bound` takes an *average* over data sets for a bound on all of them;
`empirical` looks at a few neighbours of one data set. And what is found by looking at private rows, or the
noise calibrated to it, is itself no secret any more. Both are offered because the papers use them, and are called
estimates wherever they are shown.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from silo_agent.trainer.privacy.mechanisms.protocol import Scope, Sensitivity, SiloRound
from silo_agent.trainer.privacy.settings import SensitivitySettings
from wire.privacy.noise import permutation
from wire.privacy.randomness import Bits

_KEPT: Final = "empirical-sensitivity"


@dataclass(frozen=True)
class ChangedRows:
    """At most `count` labels of a ballot change with one unit, and how that is known."""

    count: int
    source: Sensitivity


def worst_case(rows: int) -> ChangedRows:
    """Every label may change: true of every learner."""
    return ChangedRows(rows, Sensitivity.WORST_CASE)


def stability_bound(rows: int, stability: float, confidence: float) -> ChangedRows:
    """The papers' Proposition 2: nε(n) + P√(nε(n)(1−ε(n))) + P²/3 with P = Φ⁻¹(confidence); an estimate.

    `stability` is their ε(n), the probability that one label changes, averaged over data sets.
    """
    quantile = NormalDist().inv_cdf(confidence)
    expected = rows * stability
    bound = expected + quantile * math.sqrt(expected * (1 - stability)) + quantile * quantile / 3
    return ChangedRows(min(rows, max(1, math.ceil(bound))), Sensitivity.STABILITY_BOUND)


def empirical(silo: SiloRound, samples: int, bits: Bits) -> ChangedRows:
    """The largest change among `samples` neighbours that lack one unit, at least 1; an estimate.

    Found in the first round that asks and kept: it is the same for the whole task, also after a crash.
    """
    kept = silo.kept.get(_KEPT)
    if kept is not None:
        found = json.loads(kept)
        if found["samples"] == samples:
            return ChangedRows(found["changed_rows"], Sensitivity.EMPIRICAL)
    labels = silo.wanted_labels()
    everyone = np.unique(silo.patients)
    tried = everyone[permutation(len(everyone), bits)[:samples]]
    changes = (np.count_nonzero(silo.relabel_without(int(unit)) != labels) for unit in tried)
    changed = max((1, *map(int, changes)))
    silo.kept.put(_KEPT, json.dumps({"samples": samples, "changed_rows": changed}).encode())
    return ChangedRows(changed, Sensitivity.EMPIRICAL)


def changed_rows(
    settings: SensitivitySettings, scope: Scope, silo: SiloRound, bits: Bits
) -> ChangedRows:
    """What silo.yaml chose; `bits` pick the neighbours that `empirical` tries."""
    rows = scope.shape.rows
    match settings.source:
        case Sensitivity.STABILITY_BOUND:
            if settings.stability is None:
                raise ValueError("stability_bound needs a stability")
            return stability_bound(rows, settings.stability, settings.confidence)
        case Sensitivity.EMPIRICAL:
            return empirical(silo, settings.samples, bits)
        case Sensitivity.WORST_CASE | Sensitivity.BY_CONSTRUCTION:
            return worst_case(rows)
