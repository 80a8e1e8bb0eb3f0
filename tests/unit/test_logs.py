from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from compactor.service.logs import configure_logging


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Logging is global to the process; leave it as it was found."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_records_are_json_lines_where_nobody_watches() -> None:
    stream = io.StringIO()
    configure_logging(level="info", form="auto", stream=stream)
    structlog.get_logger("compactor.worker").info("compacted", table="db.t", rows=3, path=Path("/x"))
    record = json.loads(stream.getvalue())
    assert record.pop("timestamp").endswith("Z")
    assert record == {
        "event": "compacted",
        "level": "info",
        "logger": "compactor.worker",
        "table": "db.t",
        "rows": 3,
        "path": "/x",
    }


def test_records_are_readable_lines_on_a_terminal() -> None:
    stream = Terminal()
    configure_logging(level="info", form="auto", stream=stream)
    structlog.get_logger("compactor.worker").info("compacted", table="db.t")
    assert "compacted" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


@pytest.mark.parametrize(("form", "starts_json"), [("json", True), ("human", False)])
def test_the_format_can_be_forced(form: str, starts_json: bool) -> None:
    stream = Terminal() if form == "json" else io.StringIO()
    configure_logging(level="info", form=form, stream=stream)  # type: ignore[arg-type]
    structlog.get_logger("compactor").info("hello")
    assert stream.getvalue().startswith("{") == starts_json


def test_human_records_in_a_file_have_no_colours() -> None:
    stream = io.StringIO()
    configure_logging(level="info", form="human", stream=stream)
    structlog.get_logger("compactor").warning("hello", table="db.t")
    assert "\x1b" not in stream.getvalue()


def test_records_below_the_level_are_dropped() -> None:
    stream = io.StringIO()
    configure_logging(level="warning", form="json", stream=stream)
    log = structlog.get_logger("compactor")
    log.info("dropped")
    log.warning("kept")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["kept"]


def test_libraries_pass_through_the_same_renderer_and_noisy_ones_only_with_what_matters() -> None:
    stream = io.StringIO()
    configure_logging(level="info", form="json", stream=stream)
    logging.getLogger("somebody").info("from %s", "a library", extra={"port": 1})
    logging.getLogger("py4j").info("chatter")
    logging.getLogger("py4j").warning("trouble")
    logging.getLogger("apscheduler.scheduler").warning("a cycle is longer than its interval")
    records = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(record["event"], record["logger"]) for record in records] == [
        ("from a library", "somebody"),
        ("trouble", "py4j"),
    ]
    assert records[0]["port"] == 1


def test_an_exception_is_part_of_its_record() -> None:
    stream = io.StringIO()
    configure_logging(level="info", form="json", stream=stream)
    try:
        int("broken")
    except ValueError:
        structlog.get_logger("compactor").exception("failed")
    record = json.loads(stream.getvalue())
    assert record["level"] == "error"
    assert "ValueError: invalid literal" in record["exception"]


def test_fields_bound_to_a_piece_of_work_are_in_all_its_records() -> None:
    stream = io.StringIO()
    configure_logging(level="info", form="json", stream=stream)
    with structlog.contextvars.bound_contextvars(cycle="cleaner"):
        structlog.get_logger("compactor").info("inside")
    structlog.get_logger("compactor").info("outside")
    inside, outside = (json.loads(line) for line in stream.getvalue().splitlines())
    assert inside["cycle"] == "cleaner"
    assert "cycle" not in outside


def test_configuring_again_replaces_the_first_stream() -> None:
    first, second = io.StringIO(), io.StringIO()
    log = structlog.get_logger("compactor")
    configure_logging(level="info", form="json", stream=first)
    log.info("one")
    configure_logging(level="info", form="json", stream=second)
    log.info("two")
    assert json.loads(first.getvalue())["event"] == "one"
    assert json.loads(second.getvalue())["event"] == "two"
