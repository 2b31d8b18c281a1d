"""A relay with a wrong clock: nothing may depend on its machine's wall-clock time."""

import itertools
import time
from datetime import UTC, datetime

import pytest

from tests.faults.clock import AHEAD_MS, right
from tests.relay.relaying import Place
from thresher.devstack.stack import Stack
from thresher.kafka.committed_tail import CommittedTail
from thresher.outbox import Message
from thresher.relay.leader import watch as watch_module
from thresher.spark.session.session import Session

HOUR = 3600.0


def test_a_wrong_clock_loses_no_progress_that_restores_need(
    stack: Stack, spark: Session, dsn: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = Place(stack, dsn, topic_prefix)
    real, jumps = time.time, itertools.cycle([HOUR, -HOUR, 25 * HOUR])
    monkeypatch.setattr(watch_module, "_TRIM_SECONDS", 0.5)
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    trimmed: list[bool] = []
    trim = watch_module.RelayWatch.trim

    def noted(watch: watch_module.RelayWatch) -> None:
        trim(watch)
        trimmed.append(True)

    monkeypatch.setattr(watch_module.RelayWatch, "trim", noted)

    def first() -> int:
        with CommittedTail(f"{at.prefix}relay.progress", 0, {"bootstrap.servers": stack.kafka.bootstrap}) as tail:
            tail.sample()
            return tail.first

    with at.relaying(shards=1, limits={"batch_rows": 10}) as relaying:
        at.stash(*(Message(topic=at.topic, key="k", value=str(n)) for n in range(100)))
        relaying.until(lambda: relaying.sent() == 100)
        relaying.until(lambda: len(trimmed) >= 4)
        assert first() == 0
    # The progress topic is trimmed by the broker's clock.
    with at.relaying(shards=1, limits={"horizon_seconds": 1.0}) as relaying:

        def cut() -> bool:
            at.stash(Message(topic=at.topic, key="k", value="more"))
            return first() > 20

        relaying.until(cut)


def test_a_record_without_a_timestamp_gets_the_databases_time(
    stack: Stack, spark: Session, dsn: str, topic_prefix: str
) -> None:
    """With its own clock, a relay that is more than an hour ahead would have every record refused by the broker."""
    at = Place(stack, dsn, topic_prefix)
    own = datetime(2020, 2, 29, tzinfo=UTC)
    at.stash(*(Message(topic=at.topic, key="k", value=str(n)) for n in range(10)))
    at.stash(Message(topic=at.topic, key="own", value="own", timestamp=own))
    with at.relaying(shards=1, hook="tests.faults.clock:reached"):
        found = at.read(11)
    (now,) = at.sql("SELECT extract(epoch FROM clock_timestamp())::float8 * 1000")[0]
    for message in found:
        at_ms = message.timestamp()[1]
        # The clock is ahead by much more than the time that the test takes.
        late_ms = now - (at_ms - AHEAD_MS)
        assert at_ms == own.timestamp() * 1000 if message.key() == b"own" else abs(late_ms) < AHEAD_MS / 5


def test_rows_with_a_wrong_clocks_timestamp_wait_without_dying(
    stack: Stack, spark: Session, dsn: str, topic_prefix: str
) -> None:
    at = Place(stack, dsn, topic_prefix)
    at.stash(*(Message(topic=at.topic, key=f"k{n % 7}", value=str(n)) for n in range(40)))
    at.stash(Message(topic=at.topic, key="k3", value="own", timestamp=datetime(2400, 1, 1, tzinfo=UTC)))
    at.stash(*(Message(topic=at.topic, key=f"k{n % 7}", value=str(n)) for n in range(40, 50)))
    try:
        with at.relaying(shards=1, hook="tests.faults.clock:far", limits={"grace_seconds": 1.0}) as relaying:
            relaying.until(lambda: "clocks" in relaying.relay.alarms.get(at.topic, ""), 60)
            assert at.dead() == []
            assert at.pending() == 51
            right().touch()
            relaying.until(lambda: at.pending() == 0, 60)
    finally:
        right().unlink(missing_ok=True)
    found = at.read(50)
    for key in {message.key() for message in found}:
        numbers = [int(message.value() or 0) for message in found if message.key() == key]
        assert numbers == sorted(numbers)
    # An explicit timestamp that every broker refuses is the row's fault.
    assert [row[1] for row in at.dead()] == ["rejected"]
