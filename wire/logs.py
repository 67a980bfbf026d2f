"""Structured logs: one line per event, readable on a terminal, JSON elsewhere; never a label or a payload."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog


def configure_logs(level: str = "info", *, json: bool | None = None) -> None:
    """Sends structlog's events to standard error; JSON unless that is a terminal or `json` says so."""
    as_json = not sys.stderr.isatty() if json is None else json
    renderer: Any = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
