"""An outbox that is restored from a backup under a running, idle relay."""

import psycopg
import pytest

from tests.relay.relaying import Place
from thresher.devstack.stack import Stack
from thresher.outbox import Message
from thresher.relay.settings import Delivery
from thresher.spark.session.session import Session

COLUMNS = (
    "id, create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition, "
    "kafka_timestamp"
)
# A copy of the table from before its rows were sent, and the ways to restore it in one transaction.
BACKUP = f"CREATE TABLE backup AS SELECT {COLUMNS} FROM outbox"
REFILL = f"INSERT INTO outbox ({COLUMNS}) SELECT * FROM backup"
WAYS = {
    "another table": f"ALTER TABLE outbox RENAME TO lost; CREATE TABLE outbox (LIKE lost INCLUDING ALL); {REFILL}",
    "another content": f"TRUNCATE outbox; {REFILL}",
}


@pytest.mark.parametrize(
    ("way", "delivery"),
    [("another table", Delivery.EXACTLY_ONCE), ("another content", Delivery.AT_LEAST_ONCE)],
)
def test_rows_of_a_replaced_table_are_not_sent_again(
    stack: Stack, spark: Session, dsn: str, topic_prefix: str, way: str, delivery: Delivery
) -> None:
    at = Place(stack, dsn, topic_prefix)
    at.stash(*(Message(topic=at.topic, key=f"k{n % 7}", value=str(n)) for n in range(60)))
    at.sql(BACKUP)
    with at.relaying(shards=2, delivery=delivery, limits={"batch_rows": 20}) as relaying:
        relaying.until(lambda: at.pending() == 0)
        at.read(60)
        with psycopg.connect(at.dsn) as connection:
            connection.execute(WAYS[way].encode())
        relaying.until(lambda: at.pending() == 0)
        at.sql("INSERT INTO outbox (id, kafka_topic, kafka_key, kafka_value) VALUES (1000, %s, 'k', '60')", at.topic)
        relaying.until(lambda: at.pending() == 0)
        assert sorted(int(message.value() or b"") for message in at.read(61)) == list(range(61))
    assert at.dead() == []
