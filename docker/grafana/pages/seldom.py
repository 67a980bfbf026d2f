"""What happens seldom, such as a round in hours: read over the last hour, or there would be nothing to see."""

from __future__ import annotations

from panels import Query


def in_an_hour(counter: str, by: str, where: str = "") -> Query:
    """How often something was counted within an hour, for each value of `by` for which it was at all."""
    return Query(f"sum by ({by}) (increase({counter}{where}[1h])) > 0", f"{{{{{by}}}}}")


def durations(histogram: str, by: str, where: str = "") -> tuple[Query, ...]:
    """Mean and 95th percentile within an hour, for each value of `by`; of all together if that is empty."""
    kept, name = (f"le, {by}", f"{{{{{by}}}}} ") if by else ("le", "")

    def grown(part: str, labels: str) -> str:
        return f"sum by ({labels}) (increase({histogram}_{part}{where}[1h]))"

    mean = f"{grown('sum', by)} / {grown('count', by)}"
    return (
        Query(mean, f"{name}mean"),
        Query(f"histogram_quantile(0.95, {grown('bucket', kept)})", f"{name}95 %"),
    )
