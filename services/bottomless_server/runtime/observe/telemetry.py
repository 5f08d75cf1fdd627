"""Logs: structlog, on stderr. Everything here logs through `structlog.get_logger`.

Stdout belongs to the one line that says where a service listens. What libraries log
through the standard logging module comes out the same way, from warnings on.
"""

import logging
import os
import sys
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Literal, TextIO, cast

import stamina.instrumentation
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from bottomless_server.runtime.http.tracing import name_request


def configure_logs(
    level: Literal["debug", "info", "warning", "error"] = "info", *, as_json: bool = False
) -> None:
    """Send all logs of this process to stderr, once, before anything else is started."""
    least = logging.getLevelNamesMapping()[level.upper()]
    stderr = cast("TextIO", _Stderr())
    stamps: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        name_request,
        _name_codes,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Whoever retries says so once, with the request; the library has a line for each attempt.
    stamina.instrumentation.set_on_retry_hooks([])
    shape = _json_shape() if as_json else _text_shape()
    structlog.configure(
        processors=[*stamps, *shape],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(file=stderr),
        cache_logger_on_first_use=False,
    )
    libraries = logging.StreamHandler(stderr)
    libraries.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=stamps,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *shape],
        )
    )
    logging.basicConfig(handlers=[libraries], level=max(least, logging.WARNING), force=True)


def _name_codes(_: WrappedLogger, __: str, line: EventDict) -> EventDict:
    """Write a code, or another value of an enumeration, as it is spelled everywhere else."""
    for name, value in line.items():
        if isinstance(value, Enum):
            line[name] = value.value
    return line


class _Stderr:
    """Stderr, as far as somebody reads it: work must not fail because a log line cannot be written."""

    def write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
        except OSError:
            _stop_writing()

    def flush(self) -> None:
        try:
            sys.stderr.flush()
        except OSError:
            _stop_writing()


def _stop_writing() -> None:
    """Nobody reads stderr any more: send it nowhere.

    What its buffer still holds would otherwise fail once more when the interpreter ends,
    which then exits with 120 after a clean stop.
    """
    with suppress(OSError), Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stderr.fileno())


def _json_shape() -> list[Processor]:
    # Tracebacks without the values of variables: those are users' records.
    traceback = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    return [
        structlog.processors.ExceptionRenderer(traceback),
        structlog.processors.JSONRenderer(),
    ]


def _text_shape() -> list[Processor]:
    # Values are shown as Python would write them: a newline in a value starts no line of the log.
    return [
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            repr_native_str=True,
            pad_event_to=0,
            exception_formatter=structlog.dev.plain_traceback,
        )
    ]
