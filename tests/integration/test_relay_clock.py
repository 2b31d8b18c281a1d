"""A relay whose clock is wrong: nothing that it does may rest on wall time."""

import itertools
import time
from datetime import UTC, datetime

import pytest

from tests.relay.clock import AHEAD_MS
from tests.relay.relaying import Place
from thresher.devstack.stack import Stack
from thresher.kafka.tail import Tail
from thresher.outbox import Message
from thresher.relay import relay as relay_module
from thresher.relay.settings import Mandate
from thresher.spark.session import Session

HOUR = 3600.0


def test_a_clock_that_is_wrong_or_jumps_costs_no_progress_that_a_restore_needs(
    stack: Stack, spark: Session, dsn: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = Place(stack, dsn, topic_prefix)
    real, jumps = time.time, itertools.cycle([HOUR, -HOUR, 25 * HOUR])
    monkeypatch.setattr(relay_module, "_TRIM_SECONDS", 0.5)
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    trimmed: list[bool] = []
    trim = relay_module.Relay._trim

    def noted(relay: relay_module.Relay, mandate: Mandate) -> None:
        trim(relay, mandate)
        trimmed.append(True)

    monkeypatch.setattr(relay_module.Relay, "_trim", noted)

    def kept() -> int:
        with Tail(f"{at.prefix}relay.progress", 0, {"bootstrap.servers": stack.kafka.bootstrap}) as tail:
            return len(list(tail.whole()))

    with at.relaying(shards=1, limits={"batch_rows": 10}) as relaying:
        at.stash(*(Message(topic=at.topic, key="k", value=str(n)) for n in range(100)))
        relaying.until(lambda: relaying.total("relayed") == 100)
        before = kept()
        relaying.until(lambda: len(trimmed) >= 4)
        assert kept() == before
    assert before > 10
    # By the broker's own clock it is trimmed.
    with at.relaying(shards=1, limits={"horizon_seconds": 1.0}) as relaying:

        def few() -> bool:
            at.stash(Message(topic=at.topic, key="k", value="more"))
            return kept() < before

        relaying.until(few)


def test_a_record_without_a_time_of_its_own_gets_the_databases(
    stack: Stack, spark: Session, dsn: str, topic_prefix: str
) -> None:
    """By the relay's own clock, brokers would refuse every record of a relay that is more than an hour ahead."""
    at = Place(stack, dsn, topic_prefix)
    own = datetime(2020, 2, 29, tzinfo=UTC)
    at.stash(*(Message(topic=at.topic, key="k", value=str(n)) for n in range(10)))
    at.stash(Message(topic=at.topic, key="own", value="own", timestamp=own))
    with at.relaying(shards=1, hook="tests.relay.clock:reached"):
        found = at.read(11)
    (now,) = at.sql("SELECT extract(epoch FROM clock_timestamp())::float8 * 1000")[0]
    for message in found:
        at_ms = message.timestamp()[1]
        assert at_ms == own.timestamp() * 1000 if message.key() == b"own" else abs(at_ms - AHEAD_MS - now) < 60_000
