"""Structured logs: one line per event, readable on a terminal, JSON elsewhere; never a label or a payload.

The text of an exception may quote what was being handled, so it is not logged: kind and place are, also of
what libraries log themselves and of what ends the process. Only the private side's own log may have the text.
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

_log = structlog.get_logger()


def configure_logs(
    level: str = "info", *, json: bool | None = None, exception_text: bool = False
) -> None:
    """Sends every log to standard error; JSON unless that is a terminal or `json` says so.

    `exception_text` also logs what exceptions say: for the private side alone.
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
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    if not exception_text:
        logging.basicConfig(level=logging.WARNING, handlers=[_Relay()], force=True)
        sys.excepthook = _last_words


def harmless(error: BaseException) -> dict[str, object]:
    """What may be logged of an exception: its kind, and where it came from, outermost call first."""
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
        event.update(harmless(error))
    return event


class _Relay(logging.Handler):
    """What libraries log, in our form: the message without its arguments, or an exception's kind and place."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        # asyncio puts the exception itself into its message.
        told = {"message": str(record.msg)} if error is None else harmless(error)
        _log.log(record.levelno, "library", logger=record.name, **told)


def _last_words(
    kind: type[BaseException], error: BaseException, _traceback: TracebackType | None
) -> None:
    """`sys.excepthook`: what ends the process is logged like everything else."""
    if not issubclass(kind, KeyboardInterrupt):
        _log.critical("crashed", **harmless(error))
