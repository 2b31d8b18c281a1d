"""Builds the Kafka records of a tracker's transaction, for the three topics."""

from collections.abc import Callable

from thresher.kafka.transactional import Produced
from thresher.queue.wire.dead_letter import dead_records, first_part_bytes
from thresher.queue.wire.marker import Marker, MessageId, encode
from thresher.queue.wire.record import Record, headers_of
from thresher.tracker.protocol.transaction import Fate, Redelivered, Transaction, end_of, mark
from thresher.tracker.settings import TrackerSettings


def records_of(
    transaction: Transaction,
    settings: TrackerSettings,
    partition: int,
    message_partition: Callable[[], int],
    dead_partition_of: Callable[[bytes], int],
) -> list[Produced]:
    """Return the records.

    Markers go to `partition`, and each message to the partition that `message_partition` returns. The messages come
    first, so that the first record that the broker refuses is one of them. `dead_partition_of` returns the partition
    of a dead letter's key.
    """
    records: list[Produced] = []
    for fate in transaction.fates:
        records += _fate_records(fate, settings, message_partition, dead_partition_of)
    markers = [*transaction.copies, *map(end_of, transaction.fates)]
    records += [
        (settings.marker_topic, encode(marker), marker.key or None, partition, 0, None)
        for marker in markers
    ]  # fmt: skip
    if transaction.mark is not None:
        records.append((settings.marker_topic, encode(mark(transaction.mark[0])), None, partition, 0, None))
    return records


def _fate_records(
    fate: Fate,
    settings: TrackerSettings,
    message_partition: Callable[[], int],
    dead_partition_of: Callable[[bytes], int],
) -> list[Produced]:
    marker = fate.marker
    queue, record = marker.key, record_of_start(marker)
    if isinstance(fate, Redelivered):
        return [(settings.message_topic, record.payload, queue, message_partition(), 0, headers_of(record))]
    part_bytes = first_part_bytes(record, settings.max_message_bytes) if fate.part_bytes is None else fate.part_bytes
    return dead_records(
        settings.dead_topic, queue, record, fate.reason, part_bytes=part_bytes, partition_of=dead_partition_of
    )


def record_of_start(marker: Marker) -> Record:
    """Return the message that a Start holds."""
    return Record(
        message_id=MessageId(*marker.message_id),
        payload=marker.value,
        headers=marker.headers,
        delivery_count=marker.delivery_count,
        origin_id=marker.origin_id or marker.message_id,
        # kafka-mq-go's markers have no time of sending.
        enqueued_at_ms=marker.enqueued_at_ms or 0,
        max_deliveries=marker.max_deliveries,
        ttl_ms=marker.ttl_ms,
        first_started_ms=marker.first_started_ms,
    )
