"""A hospital's privacy budgets, read from the agent."""

from __future__ import annotations

from collections.abc import Callable

from panels import Dashboard, Panel, Query, Row

from pages.words import HOSPITAL_VARIABLES, here

_DATA_SET = ('{task=""}', "data set, lifetime")
_TASKS = ('{task!=""}', "{{task}}")


def _each(expr: Callable[[str], str]) -> tuple[Query, ...]:
    """The same of the data set and of every running task."""
    return tuple(Query(expr(which), legend) for which, legend in (_DATA_SET, _TASKS))


def _spent(which: str) -> str:
    return f"max by (task) ({here(f'consilium_privacy_epsilon_spent{which}')})"


def _budget(which: str) -> str:
    return f"max by (task) ({here(f'consilium_privacy_epsilon_budget{which}')})"


def _releases(which: str = "") -> str:
    return f"max by (cost) ({here(f'consilium_privacy_releases_total{which}')})"


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
                    "Share of ε that is spent, of the data set and of each running task. At 100 % the silo abstains.",
                    _each(lambda which: f"{_spent(which)} / {_budget(which)}"),
                    kind="bargauge",
                    unit="percentunit",
                    width=12,
                    maximum=1,
                    limits=(0.8, 0.95),
                ),
                Panel(
                    "Left",
                    "ε that may still be spent, where a budget is set.",
                    _each(lambda which: f"{_budget(which)} - {_spent(which)}"),
                    kind="stat",
                    unit="none",
                    width=12,
                    limits=(0.05, 0.2),
                    falling=True,
                ),
                Panel(
                    "ε over time",
                    "Privacy loss so far: of the data set over its lifetime, and of each task while it runs. Infinite where something left without noise.",
                    _each(_spent),
                    unit="none",
                    width=12,
                ),
                Panel(
                    "Budgets",
                    "What may be spent.",
                    _each(_budget),
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
                    (Query(_releases(), "{{cost}}"),),
                    kind="stat",
                    width=8,
                ),
                Panel(
                    "Estimates",
                    "Releases whose cost is an estimate: the ledger shows the worst case beside them.",
                    (Query(_releases('{cost="estimate"}'), "estimates"),),
                    kind="stat",
                    width=8,
                    limits=(1,),
                ),
                Panel(
                    "Releases over time",
                    "What left per second.",
                    (
                        Query(
                            f"sum by (cost) ({here('rate(consilium_privacy_releases_total[$__rate_interval])')})",
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
