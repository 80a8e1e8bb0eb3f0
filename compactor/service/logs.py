"""Structured logs: readable lines on a terminal, one JSON object a line everywhere else.

Every record has `level`, `timestamp` (UTC, ISO 8601), `logger` and `event`; fields are added by the caller or, for all
records of one piece of work, by `structlog.contextvars.bound_contextvars`. Records of libraries that use the standard
`logging` module pass through the same renderer.
"""

from __future__ import annotations

import logging
from typing import Final, Literal, TextIO

import structlog

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "human", "json"]

NOISY_LOGGERS: Final = {"apscheduler": logging.ERROR, "py4j": logging.WARNING, "sqlalchemy.engine": logging.WARNING}
"""Libraries that log every step, and the least severity that is kept of them. APScheduler warns whenever a cycle takes
longer than its interval, which is how it should be."""


def configure_logging(*, level: Level, form: Format, stream: TextIO) -> None:
    """Send all records of the process to `stream`; calling it again replaces what an earlier call set up.

    form: "auto" is human when the stream is a terminal, JSON otherwise.
    """
    human = form == "human" or (form == "auto" and stream.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.ExtraAdder(),
    ]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=_final_processors(human, stream))
    )
    root = logging.getLogger()
    for previous in root.handlers[:]:
        root.removeHandler(previous)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name, least in NOISY_LOGGERS.items():
        logging.getLogger(name).setLevel(max(least, root.level))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        # Not cached: module-level loggers must follow a second configuration.
        cache_logger_on_first_use=False,
    )


def _final_processors(human: bool, stream: TextIO) -> list[structlog.typing.Processor]:
    strip = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    if human:
        return [strip, structlog.dev.ConsoleRenderer(colors=stream.isatty())]
    # Hive types (Path, enums, dataclasses) end up as text rather than as a failure to log.
    return [strip, structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
