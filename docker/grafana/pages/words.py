"""What several dashboards say alike."""

from __future__ import annotations

from typing import Any

from panels import Panel, Query, Variable

UP = (("1", "up", "green"), ("0", "down", "red"))
CONNECTED = (("1", "connected", "green"), ("0", "away", "red"))
DAY = 86400.0

HOSPITAL_VARIABLES = (Variable("silo", "Silo", "label_values(consilium_agent_info, silo)"),)


def here(series: str, window: str = "") -> str:
    """`series` of the chosen silo's agent; of all it had in `window`, for what looks back.

    An agent that is started again may have another address, so that a panel adds up or takes the most of what it gets.
    """
    whose = 'consilium_agent_info{silo="$silo"}'
    return f"{series} and on (instance) " + (
        f"last_over_time({whose}[{window}])" if window else whose
    )


def quantiles(metric: str, by: str, where: str = "") -> tuple[Query, ...]:
    """Median and 95th percentile of a histogram, for each value of `by`; of all together if that is empty."""
    return _quantiles(f"rate({metric}_bucket{where}[$__rate_interval])", by)


def quantiles_of_a_day(metric: str, by: str) -> tuple[Query, ...]:
    """The same at the chosen silo, over the day before each moment: for what happens a few times a day."""
    return _quantiles(here(f"rate({metric}_bucket[1d])", "1d"), by)


def _quantiles(rate: str, by: str) -> tuple[Query, ...]:
    kept, name = (f"le, {by}", f"{{{{{by}}}}} ") if by else ("le", "")
    over = f"sum by ({kept}) ({rate})"
    return (
        Query(f"histogram_quantile(0.5, {over})", f"{name}median"),
        Query(f"histogram_quantile(0.95, {over})", f"{name}95 %"),
    )


def tile(title: str, description: str, expr: str, legend: str, **more: Any) -> Panel:
    """One number, in a row of six."""
    return Panel(title, description, (Query(expr, legend),), kind="stat", width=4, height=5, **more)
