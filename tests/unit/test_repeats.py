"""Equal log lines: which are written, which are counted, and when the count is logged."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.set_clock import SetClock
from thresher.observe.logs import CountingHandler, JsonFormatter, TextFormatter
from thresher.observe.repeats import SECONDS, Repeats

CLIENT = "thresher.kafka.admin.client"
FAIL = "FAIL [rdkafka#producer-%d] 127.0.0.1:1: Connection refused (after %dms in state CONNECT)"


def line(text: str, *, logger: str = "thresher.part", level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord(logger, level, __file__, 1, text, None, None)


def said(records: list[logging.LogRecord]) -> list[tuple[str, int]]:
    return [(record.getMessage(), getattr(record, "repeated", 0)) for record in records]


def test_equal_lines_are_counted_and_logged_once_a_minute() -> None:
    repeats = Repeats()
    assert said(repeats.admit(line("it waits"), 0.0)) == [("it waits", 0)]
    for second in range(1, 60):
        assert repeats.admit(line("it waits"), float(second)) == []
    assert repeats.ends_at == SECONDS
    assert said(repeats.due(SECONDS)) == [("it waits", 59)]
    assert repeats.admit(line("it waits"), SECONDS + 1) == []
    assert said(repeats.due(2 * SECONDS)) == [("it waits", 1)]
    assert repeats.due(3 * SECONDS) == []
    assert said(repeats.admit(line("it waits"), 3 * SECONDS)) == [("it waits", 0)]


def test_foreign_lines_differing_only_in_numbers_are_equal() -> None:
    repeats = Repeats()
    assert repeats.admit(line(FAIL % (1, 0), logger=CLIENT), 0.0)
    assert not repeats.admit(line(FAIL % (2, 13), logger=CLIENT), 1.0)
    assert repeats.admit(line("shard 1 fails"), 2.0)
    assert repeats.admit(line("shard 2 fails"), 2.0)


def test_an_info_line_of_a_logger_resets_its_warnings() -> None:
    repeats = Repeats()
    assert repeats.admit(line("it waits"), 0.0)
    assert repeats.admit(line("it runs", logger="thresher.other", level=logging.INFO), 1.0)
    assert not repeats.admit(line("it waits"), 2.0)
    assert said(repeats.admit(line("it runs", level=logging.INFO), 3.0)) == [("it waits", 1), ("it runs", 0)]
    assert said(repeats.admit(line("it waits"), 4.0)) == [("it waits", 0)]


def test_errors_with_other_reasons_are_other_lines() -> None:
    repeats = Repeats()
    for number in range(2):
        error = LookupError(number)
        why = (LookupError, error, None)
        record = logging.LogRecord("thresher.part", logging.ERROR, __file__, 1, "it broke", None, why)
        assert repeats.admit(record, 0.0) == [record]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c"]),
            st.sampled_from([logging.INFO, logging.WARNING, logging.ERROR]),
            st.floats(0, 90),
        )
    )
)
def test_every_line_is_written_or_counted(lines: list[tuple[str, int, float]]) -> None:
    repeats, now = Repeats(), 0.0
    written: list[tuple[str, int]] = []
    for text, level, later in lines:
        now += later
        written += said(repeats.admit(line(text, level=level), now))
        assert repeats.ends_at is None or repeats.ends_at > now
    written += said(repeats.end())
    # The line with a count is the last line that it counts.
    assert sum(max(1, count) for _, count in written) == len(lines)


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    found = logging.getLogger("thresher.tests.repeats")
    found.propagate = False
    yield found
    found.propagate = True
    found.handlers.clear()


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()], ids=["text", "json"])
def test_a_count_is_part_of_the_line(logger: logging.Logger, formatter: logging.Formatter) -> None:
    stream, clock = io.StringIO(), SetClock(0.0)
    handler = CountingHandler(stream, clock)
    handler.setFormatter(formatter)
    logger.addHandler(handler)
    for _ in range(3):
        logger.warning("it waits for %s", "the broker")
    clock.now = SECONDS
    handler.say_due()
    logger.warning("it waits for %s", "the broker")
    handler.close()
    first, second, third = stream.getvalue().splitlines()
    if isinstance(formatter, JsonFormatter):
        assert [json.loads(each).get("repeated") for each in (first, second, third)] == [None, 2, 1]
        assert json.loads(second)["event"] == "it waits for %s"
    else:
        assert first.endswith("it waits for the broker")
        assert second.endswith("it waits for the broker (2 like it within a minute)")
        assert "(1 like it within a minute)" in third
