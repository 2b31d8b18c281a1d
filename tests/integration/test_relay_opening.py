"""Transactions that are opened ahead of their rows, at a real broker."""

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.processes import eventually
from tests.relay.relaying import Place
from thresher.delivery.names import progress_topic
from thresher.devstack.stack import Stack
from thresher.outbox import Message
from thresher.relay.settings import Delivery
from thresher.spark.session.session import Session

# Measured: two seconds after the last row.
ENDED_SECONDS = 20.0


class Watch:
    """Observes open transactions on the progress partition of the first shard."""

    def __init__(self, at: Place) -> None:
        self._client = AdminClient({"bootstrap.servers": at.stack.kafka.bootstrap})
        self._place = TopicPartition(progress_topic(f"{at.prefix}relay"), 0)

    def open(self) -> bool:
        """Tell whether the end of the partition is beyond the last stable offset."""
        # In this order a commit between the two requests does not look like an open transaction.
        end, readable = (
            self._client.list_offsets({self._place: OffsetSpec.latest()}, isolation_level=level)[self._place].result()
            for level in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)
        )
        return bool(readable.offset < end.offset)


@pytest.mark.parametrize("delivery", Delivery)
def test_a_busy_shard_opens_transactions_ahead_an_idle_does_not(
    stack: Stack, spark: Session, dsn: str, topic_prefix: str, delivery: Delivery
) -> None:
    at = Place(stack, dsn, topic_prefix)

    def another_is_awaited() -> bool:
        # On a slow machine the transaction may end before the check; the next row opens another.
        at.stash(Message(topic=at.topic, key="k", value="v"))
        relaying.until(lambda: at.pending() == 0)
        return Watch(at).open()

    with at.relaying(shards=1, delivery=delivery) as relaying:
        for _ in range(2):
            relaying.until(another_is_awaited)
            eventually(lambda: not Watch(at).open(), ENDED_SECONDS)
        relaying.until(another_is_awaited)
    # A broker answers before it has written all transaction markers.
    eventually(lambda: not Watch(at).open(), 5.0)
