"""What several dashboards say alike."""

from __future__ import annotations

from typing import Any

from panels import Panel, Query, Variable

UP = (("1", "up", "green"), ("0", "down", "red"))
CONNECTED = (("1", "connected", "green"), ("0", "away", "red"))
DAY = 86400.0

HOSPITAL_VARIABLES = (
    Variable("silo", "Silo", "label_values(consilium_agent_info, silo)"),
    Variable(
        "instance",
        "Agent",
        'label_values(consilium_agent_info{silo="$silo"}, instance)',
        hidden=True,
    ),
)
HERE = '{instance="$instance"}'


def quantiles(metric: str, by: str, where: str = "") -> tuple[Query, ...]:
    """Median and 95th percentile of a histogram, for each value of `by`; of all together if that is empty."""
    kept, name = (f"le, {by}", f"{{{{{by}}}}} ") if by else ("le", "")
    over = f"sum by ({kept}) (rate({metric}_bucket{where}[$__rate_interval]))"
    return (
        Query(f"histogram_quantile(0.5, {over})", f"{name}median"),
        Query(f"histogram_quantile(0.95, {over})", f"{name}95 %"),
    )


def tile(title: str, description: str, expr: str, legend: str, **more: Any) -> Panel:
    """One number, in a row of six."""
    return Panel(title, description, (Query(expr, legend),), kind="stat", width=4, height=5, **more)
