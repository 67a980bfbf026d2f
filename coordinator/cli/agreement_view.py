"""How far silos agree with a consensus, as an operator sees it: the worst first, and who stands out."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Final

from wire.consilium.v1 import admin_pb2

# The alert in docker/prometheus/consortium/alerts.yaml says the same.
FAR_BELOW_MEDIAN: Final = 0.2
LOW: Final = 0.7


def ratio(agreement: admin_pb2.SiloAgreement) -> float:
    """Share of the rows with a consensus and this silo's vote on which both say the same."""
    return agreement.agreeing_rows / agreement.compared_rows


def worst_first(agreement: Iterable[admin_pb2.SiloAgreement]) -> list[admin_pb2.SiloAgreement]:
    """Those that were compared in some row."""
    compared = (silo for silo in agreement if silo.compared_rows)
    return sorted(compared, key=lambda silo: (ratio(silo), silo.silo))


def stand_out(agreement: Iterable[admin_pb2.SiloAgreement]) -> set[str]:
    """Silos that agree little, and far less than their task's median silo."""
    ratios = {silo.silo: ratio(silo) for silo in agreement if silo.compared_rows}
    if not ratios:
        return set()
    limit = min(LOW, median(ratios.values()) - FAR_BELOW_MEDIAN)
    return {silo for silo, share in ratios.items() if share < limit}


def agreement_rows(agreement: Iterable[admin_pb2.SiloAgreement]) -> list[dict[str, object]]:
    """A table of silos, the worst first."""
    silos = worst_first(agreement)
    outliers = stand_out(silos)
    return [
        {
            "silo": silo.silo,
            "agrees": f"{ratio(silo):.1%}",
            "rows compared": silo.compared_rows,
            "": "far below the others" if silo.silo in outliers else "",
        }
        for silo in silos
    ]


def lowest(agreement: Iterable[admin_pb2.SiloAgreement]) -> str:
    """`north 41.0%`: the silo that agrees least."""
    silos = worst_first(agreement)
    return f"{silos[0].silo} {ratio(silos[0]):.1%}" if silos else "–"
