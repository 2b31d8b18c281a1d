"""A transaction larger than every buffer on its way; the tail is killed while it publishes its rows."""

import os
import signal

import pytest

from tests.tail.tailing import TailPlace
from thresher.devstack.stack import Stack
from thresher.spark.session.session import Session

# The tail reads at most 100,000 rows ahead.
_ROWS, _KEYS = 250_000, 1_000
# Seen: 15 s, with other work beside it.
_SECONDS = 100.0


@pytest.mark.timeout(600)
def test_a_transaction_larger_than_all_buffers_survives_kills(
    stack: Stack, spark: Session, dsn: str, topic_prefix: str
) -> None:
    at = TailPlace(stack, dsn, topic_prefix)
    # The next expected number of each key.
    next_of = {b"%d" % key: key or _KEYS for key in range(_KEYS)}
    (database,) = at.sql("SELECT current_database()")[0]
    # The server's decoder keeps so much of a transaction in memory, and writes the rest to files.
    at.sql(f"ALTER DATABASE \"{database}\" SET logical_decoding_work_mem = '1MB'")
    try:
        at.sql(
            "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) "
            "SELECT %s, convert_to((n %% %s)::text, 'UTF8'), convert_to(n::text, 'UTF8') FROM generate_series(1, %s) n",
            at.topic,
            _KEYS,
            _ROWS,
        )
        with at.tailing() as tailing:
            for part in (_ROWS // 5, _ROWS // 2):
                tailing.until(lambda part=part: tailing.total("relayed") > part, _SECONDS)  # type: ignore[misc]
                os.kill(tailing.pid(0), signal.SIGKILL)
            for message in at.read(_ROWS, seconds=_SECONDS):
                key = message.key() or b""
                assert int(message.value() or b"") == next_of[key]
                next_of[key] += _KEYS
            (spilled,) = at.sql("SELECT spill_bytes FROM pg_stat_replication_slots WHERE slot_name = %s", at.slot)[0]
    finally:
        at.drop_slot()
    assert spilled > 10_000_000
    assert min(next_of.values()) > _ROWS
