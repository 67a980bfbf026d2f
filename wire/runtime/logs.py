"""Structured logs: one line per event, readable on a terminal, JSON elsewhere; never a label or a payload.

The text of an exception may quote data, so only its type and traceback locations are logged, also for what
libraries log and for an exception that ends the process. Only the private side's own log may have the text.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import MutableMapping
from pathlib import Path
from types import TracebackType
from typing import Any

import structlog

from wire.remote_text import visible

_log = structlog.get_logger()

_TRACEBACK = "exception"
_MOST_TRACEBACK_CHARACTERS = 64 << 10


def configure_logs(
    level: str = "info", *, json: bool | None = None, exception_text: bool = False
) -> None:
    """Sends all logs to standard error, as JSON unless that is a terminal or `json` says otherwise.

    `exception_text` also logs the text of exceptions: for the private side only.
    """
    as_json = not sys.stderr.isatty() if json is None else json
    renderer: Any = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info if exception_text else _without_text,
            _visible_values,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    if not exception_text:
        logging.basicConfig(level=logging.WARNING, handlers=[_LibraryHandler()], force=True)
        sys.excepthook = _log_crash


def exception_summary(error: BaseException) -> dict[str, object]:
    """What may be logged of an exception: its type and traceback locations, outermost call first."""
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
    return {"kind": type(error).__name__, "where": where}


def _without_text(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """structlog's processor for `exc_info`, without the exception's text."""
    found = event.pop("exc_info", None)
    if found is True:
        found = sys.exc_info()
    error = found[1] if isinstance(found, tuple) else found
    if isinstance(error, BaseException):
        event.update(exception_summary(error))
    return event


def _visible_values(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """structlog's processor for what other machines said: nothing in a value steers a terminal or fills a disk."""
    for key, value in event.items():
        if key == _TRACEBACK:
            event[key] = visible(str(value), _MOST_TRACEBACK_CHARACTERS, lines=True)
        elif isinstance(value, str):
            event[key] = visible(value)
        elif isinstance(value, list | tuple):
            event[key] = [visible(each) if isinstance(each, str) else each for each in value]
    return event


class _LibraryHandler(logging.Handler):
    """Logs libraries' records in our format: the message without its arguments, or an exception's summary."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        # asyncio puts the exception itself into its message.
        fields = {"message": str(record.msg)} if error is None else exception_summary(error)
        _log.log(record.levelno, "library", logger=record.name, **fields)


def _log_crash(
    kind: type[BaseException], error: BaseException, _traceback: TracebackType | None
) -> None:
    """`sys.excepthook`: logs the exception that ends the process."""
    if not issubclass(kind, KeyboardInterrupt):
        _log.critical("crashed", **exception_summary(error))
