"""One silo as the consortium sees it, read from the coordinator."""

from __future__ import annotations

from panels import Dashboard, Panel, Query, Row, Variable

from pages.words import CONNECTED, DAY, tile

_SILO = '{silo="$silo"}'

SILO = Dashboard(
    "silo",
    "One silo",
    "One silo as the consortium sees it. Read from the coordinator, and empty unless metrics_per_silo is set in its coordinator.yaml; the hospital's own view is another page.",
    variables=(
        Variable("silo", "Silo", "label_values(consilium_silo_last_seen_timestamp_seconds, silo)"),
    ),
    rows=(
        Row(
            "Is it there?",
            (
                tile(
                    "Connected",
                    "Whether its lease runs.",
                    f"max(consilium_silo_connected{_SILO})",
                    "$silo",
                    names=CONNECTED,
                    limits=(1,),
                    falling=True,
                ),
                tile(
                    "Last seen",
                    "Time since its last sign of life; a heartbeat comes three times per lease.",
                    f"time() - max(consilium_silo_last_seen_timestamp_seconds{_SILO})",
                    "ago",
                    unit="s",
                    limits=(60, 900),
                ),
                tile(
                    "Certificate left",
                    "Time until its newest certificate expires; it renews itself at two thirds of its life.",
                    f"max(consilium_silo_certificate_expiry_timestamp_seconds{_SILO}) - time()",
                    "left",
                    unit="s",
                    limits=(DAY, 2 * DAY),
                    falling=True,
                ),
                Panel(
                    "Version",
                    "What its agent says it runs.",
                    (Query(f"max by (version) (consilium_silo_version_info{_SILO})"),),
                    kind="table",
                    width=4,
                    height=5,
                ),
                Panel(
                    "Connection",
                    "When it was connected.",
                    (Query(f"max(consilium_silo_connected{_SILO})", "$silo"),),
                    kind="state-timeline",
                    width=8,
                    height=5,
                    names=CONNECTED,
                    limits=(1,),
                    falling=True,
                ),
            ),
        ),
        Row(
            "How does it vote?",
            (
                Panel(
                    "Agreement with the consensus",
                    "Share of its votes that the latest consensus of each task confirms.",
                    (Query(f"max by (task) (consilium_silo_agreement_ratio{_SILO})", "{{task}}"),),
                    unit="percentunit",
                    width=12,
                    maximum=1,
                    limits=(0.5, 0.7),
                    falling=True,
                ),
                Panel(
                    "Against the median silo",
                    "Its agreement less that of the median silo of the same task. More than 20 points below and below 70 %: an alert.",
                    (
                        Query(
                            f"max by (task) (consilium_silo_agreement_ratio{_SILO})"
                            " - on (task) quantile by (task) (0.5, max by (task, silo) (consilium_silo_agreement_ratio))",
                            "{{task}}",
                        ),
                    ),
                    unit="percentunit",
                    width=12,
                    limits=(-0.2, -0.1),
                    falling=True,
                ),
            ),
        ),
    ),
)
