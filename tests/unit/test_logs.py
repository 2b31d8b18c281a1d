"""The log's formats, for people and for machines."""

import io
import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tests.logging_state import logging_kept
from thresher.observe.logs import CountingHandler, LogFormat, configure_logging, forwarded_to

logger = logging.getLogger("thresher.some.part")


@pytest.fixture(autouse=True)
def without_pytests_handlers() -> Iterator[None]:
    """Keep pytest's own handlers: the set-up replaces and closes all that there are."""
    with logging_kept():
        logging.getLogger().handlers.clear()
        yield


def test_a_test_leaves_no_set_up_behind() -> None:
    root, package = logging.getLogger(), logging.getLogger("thresher")

    def state() -> tuple[object, ...]:
        return root.level, list(root.handlers), package.level, package.propagate, warnings.showwarning

    before = state()
    with logging_kept():
        configure_logging(level="warning")
        package.propagate = False
        assert state() != before
    assert state() == before


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_a_json_object_with_stable_names() -> None:
    stream = io.StringIO()
    configure_logging(LogFormat.JSON, "info", stream)
    logger.info("shard %d is %s", 3, "up", extra={"shard": 3, "relay": "grün"})
    logger.debug("not asked for")
    (line,) = lines(stream)
    assert list(line)[:5] == ["ts", "level", "logger", "message", "event"]
    assert line["ts"].endswith("Z")
    assert len(line["ts"]) == len("2026-01-01T00:00:00.000Z")
    del line["ts"]
    assert line == {
        "level": "info", "logger": "thresher.some.part", "message": "shard 3 is up", "event": "shard %d is %s",
        "shard": 3, "relay": "grün",
    }  # fmt: skip
    assert "grün" in stream.getvalue()


def test_an_error_brings_its_stack_in_the_same_line() -> None:
    stream = io.StringIO()
    configure_logging("json", logging.INFO, stream)
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        logger.exception("it broke\nin two lines")
    (line,) = lines(stream)
    assert (line["level"], line["message"]) == ("error", "it broke\nin two lines")
    assert (line["exception"]["type"], line["exception"]["message"]) == ("ZeroDivisionError", "division by zero")
    assert "Traceback" in line["exception"]["stack"]


def test_no_line_is_lost_for_odd_arguments() -> None:
    stream = io.StringIO()
    configure_logging("json", logging.INFO, stream)
    loop: list[Any] = []
    loop.append(loop)
    logger.warning("odd", extra={"loop": loop, "bytes": b"x", "nan": float("nan"), "event": "mine", "key": {(1,): 2}})
    (line,) = lines(stream)
    assert (line["event"], line["event_"], line["bytes"], line["nan"]) == ("odd", "mine", "b'x'", "nan")
    assert line["loop"] == "[[...]]"


def test_the_text_format_has_plain_lines() -> None:
    stream = io.StringIO()
    configure_logging(level=logging.DEBUG, stream=stream)
    logger.debug("shard %d is up", 3, extra={"shard": 3})
    logging.getLogger("somebody.else").info("not our concern")
    logging.getLogger("somebody.else").warning("look here")
    first, second = stream.getvalue().splitlines()
    assert first.endswith("DEBUG   shard 3 is up")
    assert second.endswith("WARNING look here")


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="xml"):
        configure_logging("xml")


def test_a_librarys_malformed_line_raises_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.Logger("some.library")
    log.addHandler(CountingHandler(io.StringIO()))
    log.warning("%d rows", "many")
    assert "Logging error" in capsys.readouterr().err


def test_forwarding_blocks_that_end_in_any_order_leave_the_logger_as_it_was() -> None:
    package = logging.getLogger("thresher")
    first, second = (forwarded_to(logging.getLogger(name)) for name in ("first", "second"))
    before = (package.level, package.propagate, list(package.handlers))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not package.propagate, "the second one still forwards"
    second.__exit__(None, None, None)
    assert (package.level, package.propagate, list(package.handlers)) == before
