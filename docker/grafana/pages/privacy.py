"""A hospital's privacy budgets, read from the agent."""

from __future__ import annotations

from panels import Dashboard, Panel, Query, Row

from pages.words import HERE, HOSPITAL_VARIABLES

PRIVACY = Dashboard(
    "privacy",
    "Privacy",
    "What a hospital has spent of its privacy budgets, for its own Grafana. Derived from its ledger; nothing of it leaves the hospital.",
    variables=HOSPITAL_VARIABLES,
    rows=(
        Row(
            "Budgets",
            (
                Panel(
                    "Spent of each budget",
                    "Share of ε that is spent; without a name, the data set's over its lifetime. At 100 % the silo abstains.",
                    (
                        Query(
                            f"consilium_privacy_epsilon_spent{HERE} / consilium_privacy_epsilon_budget{HERE}",
                            "{{task}}",
                        ),
                    ),
                    kind="bargauge",
                    unit="percentunit",
                    width=12,
                    maximum=1,
                    limits=(0.8, 0.95),
                ),
                Panel(
                    "Left",
                    "ε that may still be spent, where a budget is set.",
                    (
                        Query(
                            f"consilium_privacy_epsilon_budget{HERE} - consilium_privacy_epsilon_spent{HERE}",
                            "{{task}}",
                        ),
                    ),
                    kind="stat",
                    unit="none",
                    width=12,
                    limits=(0.05, 0.2),
                    falling=True,
                ),
                Panel(
                    "ε over time",
                    "Privacy loss so far: of each task, and without a name of the data set over its lifetime. Infinite where something left without noise.",
                    (Query(f"consilium_privacy_epsilon_spent{HERE}", "{{task}}"),),
                    unit="none",
                    width=12,
                ),
                Panel(
                    "Budgets",
                    "What may be spent.",
                    (Query(f"consilium_privacy_epsilon_budget{HERE}", "{{task}}"),),
                    unit="none",
                    width=12,
                ),
            ),
        ),
        Row(
            "Releases",
            (
                Panel(
                    "Entries of the ledger",
                    "All that ever left, by whether its cost is proved or an estimate.",
                    (Query(f"consilium_privacy_releases_total{HERE}", "{{cost}}"),),
                    kind="stat",
                    width=8,
                ),
                Panel(
                    "Estimates",
                    "Releases whose cost is an estimate: the ledger shows the worst case beside them.",
                    (
                        Query(
                            'consilium_privacy_releases_total{instance="$instance", cost="estimate"}',
                            "estimates",
                        ),
                    ),
                    kind="stat",
                    width=8,
                    limits=(1,),
                ),
                Panel(
                    "Releases over time",
                    "What left per second.",
                    (
                        Query(
                            f"sum by (cost) (rate(consilium_privacy_releases_total{HERE}[$__rate_interval]))",
                            "{{cost}}",
                        ),
                    ),
                    unit="reqps",
                    width=8,
                ),
            ),
        ),
    ),
)
