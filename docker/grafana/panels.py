"""Panels and dashboards as Grafana reads them, from as few words as they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# Grafana's grid is 24 wide.
_WIDTH = 24
# From good to bad, by the number of limits between them.
_COLOURS = (("green",), ("green", "red"), ("green", "orange", "red"))

Json = dict[str, Any]


@dataclass(frozen=True)
class Query:
    """A PromQL expression and what its series are called; `legend` is a column's name in a table."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One picture. `limits` are where it gets worse: from green to red, or to orange and then red; `falling` says that
    less is worse.
    """

    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 7
    limits: tuple[float, ...] = ()
    falling: bool = False
    maximum: float | None = None
    sparse: bool = False
    """Its series have few points: they are drawn as such, for a line needs two."""
    names: tuple[tuple[str, str, str], ...] = ()
    """What values are called, and in which colour."""
    columns: tuple[tuple[str, str, tuple[float, ...]], ...] = ()
    """Of a table: a query's legend, its unit, and below what it gets worse."""

    def json(self, number: int, x: int, y: int) -> Json:
        """The panel at its place."""
        defaults: Json = {
            "unit": self.unit,
            "thresholds": _steps(self.limits, falling=self.falling),
        }
        if self.names:
            defaults["mappings"] = [
                {
                    "type": "value",
                    "options": {
                        value: {"text": text, "color": colour, "index": index}
                        for index, (value, text, colour) in enumerate(self.names)
                    },
                }
            ]
        if self.maximum is not None:
            defaults |= {"min": 0, "max": self.maximum}
        if self.kind == "timeseries":
            shown = "line" if self.limits else "off"
            defaults["custom"] = {
                "lineWidth": 1,
                "fillOpacity": 8,
                "showPoints": "always" if self.sparse else "never",
                "thresholdsStyle": {"mode": shown},
            }
        panel: Json = {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": SOURCE,
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "fieldConfig": {"defaults": defaults, "overrides": self._overrides()},
            "options": _OPTIONS[self.kind],
            "targets": [self._target(letter, query) for letter, query in self._lettered],
        }
        if self.kind == "table":
            panel["transformations"] = self._merged()
        return panel

    @property
    def _lettered(self) -> list[tuple[str, Query]]:
        return list(zip(ascii_uppercase, self.queries, strict=False))

    def _target(self, letter: str, query: Query) -> Json:
        target: Json = {"refId": letter, "datasource": SOURCE, "expr": query.expr}
        if self.kind == "table":
            return target | {"format": "table", "instant": True}
        instant = self.kind in ("stat", "bargauge")
        return target | {"legendFormat": query.legend or "__auto", "instant": instant}

    def _overrides(self) -> list[Json]:
        return [
            {
                "matcher": {"id": "byName", "options": name},
                "properties": [
                    {"id": "unit", "value": unit},
                    {"id": "thresholds", "value": _steps(limits, falling=True)},
                    *(
                        [{"id": "custom.cellOptions", "value": {"type": "color-text"}}]
                        if limits
                        else []
                    ),
                ],
            }
            for name, unit, limits in self.columns
        ]

    def _merged(self) -> list[Json]:
        """A row for each set of labels, a column for each query that has a name."""
        # Grafana numbers columns only where there are several.
        hidden = {"Time": True, "Value": True}
        hidden |= {f"Value #{letter}": True for letter, query in self._lettered if not query.legend}
        named = {
            f"Value #{letter}": query.legend for letter, query in self._lettered if query.legend
        }
        return [
            {"id": "merge", "options": {}},
            {
                "id": "organize",
                "options": {"excludeByName": hidden, "renameByName": named, "indexByName": {}},
            },
        ]


def _steps(limits: Sequence[float], *, falling: bool) -> Json:
    colours = _COLOURS[len(limits)]
    steps = zip((None, *limits), colours[::-1] if falling else colours, strict=True)
    return {
        "mode": "absolute",
        "steps": [{"value": value, "color": colour} for value, colour in steps],
    }


_REDUCED = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: dict[str, Json] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": _REDUCED,
        "colorMode": "value",
        "graphMode": "none",
        "textMode": "auto",
    },
    "bargauge": {"reduceOptions": _REDUCED, "displayMode": "basic", "orientation": "horizontal"},
    "state-timeline": {"showValue": "never", "mergeValues": True, "rowHeight": 0.8},
    "table": {"showHeader": True, "cellHeight": "sm"},
}


@dataclass(frozen=True)
class Variable:
    """A choice at the top of a dashboard: `several` values at once, or one; hidden ones follow from others."""

    name: str
    label: str
    query: str
    several: bool = False
    hidden: bool = False

    def json(self) -> Json:
        """The variable as Grafana reads it."""
        return {
            "name": self.name,
            "label": self.label,
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": self.query, "refId": self.name},
            "definition": self.query,
            "refresh": 2,
            "sort": 1,
            "multi": self.several,
            "includeAll": self.several,
            "allValue": ".*" if self.several else None,
            "current": {"text": "All", "value": "$__all"} if self.several else {},
            "hide": 2 if self.hidden else 0,
        }


@dataclass(frozen=True)
class Row:
    """A heading and the panels under it."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Dashboard:
    """One page; `name` is its file's and its address's."""

    name: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = ()

    def json(self) -> Json:
        """The whole page, panels laid out from left to right."""
        return {
            "uid": f"consilium-{self.name}",
            "title": f"Consilium: {self.title}",
            "description": self.description,
            "tags": ["consilium"],
            "schemaVersion": 39,
            "version": 1,
            "editable": False,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": {"from": "now-6h", "to": "now"},
            "timezone": "browser",
            "templating": {"list": [_DATASOURCE, *(one.json() for one in self.variables)]},
            "links": [_ELSEWHERE],
            "annotations": {"list": []},
            "panels": list(self._laid_out()),
        }

    def _laid_out(self) -> list[Json]:
        placed: list[Json] = []
        y = 0
        for row in self.rows:
            grid = {"h": 1, "w": _WIDTH, "x": 0, "y": y}
            placed.append(
                {
                    "id": len(placed) + 1,
                    "type": "row",
                    "title": row.title,
                    "collapsed": False,
                    "gridPos": grid,
                    "panels": [],
                }
            )
            x, y, tallest = 0, y + 1, 0
            for panel in row.panels:
                if x + panel.width > _WIDTH:
                    x, y, tallest = 0, y + tallest, 0
                placed.append(panel.json(len(placed) + 1, x, y))
                x, tallest = x + panel.width, max(tallest, panel.height)
            y += tallest
        return placed


_DATASOURCE: Json = {
    "name": "datasource",
    "label": "Prometheus",
    "type": "datasource",
    "query": "prometheus",
    "refresh": 1,
    "hide": 0,
    "current": {},
}
_ELSEWHERE: Json = {
    "type": "dashboards",
    "title": "Consilium",
    "tags": ["consilium"],
    "asDropdown": True,
    "keepTime": True,
    "includeVars": False,
}
