"""Builds the records of Starts and dead letters, and translates the broker's errors into answers of the hand-off."""

from collections.abc import Callable, Iterable

from thresher.kafka.producer_problem import ProducerRefused
from thresher.kafka.refusal import Refusal
from thresher.kafka.transactional import Produced
from thresher.queue.configuration import QueueConfig
from thresher.queue.hand_off.polled_records import Batch
from thresher.queue.hand_off.protocol import Refused, Uncertain
from thresher.queue.wire.dead_letter import dead_records
from thresher.queue.wire.marker import Marker, MarkerType, encode

_OF_RECORD = frozenset({Refusal.ROW, Refusal.SIZE, Refusal.TIME})


def records_of(
    queue: bytes, batch: Batch, config: QueueConfig, partition: int, dead_partition_of: Callable[[bytes], int]
) -> list[Produced]:
    """Return a Start for each record of a batch, for this marker partition; or the dead letter of its only record.

    `dead_partition_of` returns the partition of a dead letter's key.
    """
    if batch.dead_reason is not None:
        (record,) = batch.records
        return dead_records(
            config.dead_topic,
            queue,
            record,
            batch.dead_reason,
            part_bytes=batch.part_bytes,
            partition_of=dead_partition_of,
        )
    return [
        (
            config.marker_topic,
            encode(
                Marker(
                    type=MarkerType.START,
                    message_id=record.message_id,
                    redeliver_after_ms=config.redelivery_timeout,
                    key=queue,
                    value=record.payload,
                    headers=record.headers,
                    delivery_count=record.delivery_count,
                    origin_id=record.origin_id,
                    enqueued_at_ms=record.enqueued_at_ms,
                    max_deliveries=record.max_deliveries,
                    ttl_ms=record.ttl_ms,
                    first_started_ms=record.first_started_ms,
                )
            ),
            queue,
            partition,
            0,
            None,
        )
        for record in batch.records
    ]


def judged(faults: Iterable[tuple[Refusal, str, str]]) -> Refused | Uncertain | None:
    """Return what these errors mean for the hand-off. Each is the subject of the refusal, the reason, and the topic.

    Raises `ProducerRefused` if an operator has to act.
    """
    answer: Refused | Uncertain | None = None
    for refusal, why, topic in faults:
        if refusal is Refusal.TOPIC:
            # It may also be a partition that was just added and that this client does not know yet. A new client knows
            # it, and `renew` raises `TopicsUnsuitable` if the topic is gone.
            answer = answer or Uncertain(f"{topic}: {why}")
            continue
        if refusal in {Refusal.TOPIC_DENIED, Refusal.CLIENT}:
            raise ProducerRefused(f"the broker refuses a record for {topic}: {why}; grant Write on the topic")
        if refusal in _OF_RECORD:
            answer = Refused(why)
        elif answer is None:
            answer = Uncertain(why)
    return answer
