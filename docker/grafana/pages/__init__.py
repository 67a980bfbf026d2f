"""The dashboards. Each reads one kind of page (docs/metrics.md): the coordinator's, or a hospital's own agent's."""

from __future__ import annotations

from pages.consortium import CONSORTIUM
from pages.coordinator import COORDINATOR
from pages.hospital import HOSPITAL
from pages.privacy import PRIVACY
from pages.silo import SILO

DASHBOARDS = {"consortium": (CONSORTIUM, SILO, COORDINATOR), "hospital": (HOSPITAL, PRIVACY)}
"""By whose Grafana shows them."""
