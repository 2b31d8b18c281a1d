"""Receives messages for a shell: as many as were asked for, no longer than asked for, and settled once printed.

1. A message is printed, through to the reader of standard output, and then settled: never the other way.
2. An ack makes room for another message. So the acks of the last messages that were asked for wait until the group is
   left: no message is started that is not printed.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thresher.queue import Message, QueueConsumer, QueueService

# Received at a time; and how often a stop is looked for.
_BATCH, _LOOK_SECONDS = 100, 0.2
_UNKNOWN_MARKERS = "thresher_queue_markers_unknown"


def receive_messages(
    service: "QueueService",
    queue: bytes,
    print_message: "Callable[[Message], None]",
    *,
    most: int,
    timeout: float,
    ack: bool,
    stopped: Callable[[], bool],
) -> int:
    """Print messages and settle them; return how many. `most` at once may be in progress, or fewer.

    Raises `MarkerUnknown` where the broker has not confirmed every ack, or what ended the consumer or the printing.
    """
    # Behind these, an ack would make room for a message too many.
    settled_at_once = most - service.config.max_in_progress if ack else 0
    received: int = 0
    held: list[Message] = []
    with service.queue(queue).consumer() as consumer:
        try:
            for message in _messages(consumer, most, timeout, stopped):
                print_message(message)
                received += 1
                if received > settled_at_once:
                    held.append(message)
                else:
                    message.ack()
        finally:
            # What was printed is settled, whatever ended it.
            _settle(service, consumer, held, ack=ack)
    return received


def _messages(consumer: "QueueConsumer", most: int, timeout: float, stopped: Callable[[], bool]) -> "Iterator[Message]":
    """Yield messages until there were enough, none came for a while, or a signal; then what was started till then."""
    from thresher.queue import QueueClosed  # noqa: PLC0415

    count, heard = 0, time.monotonic()
    while count < most and not stopped():
        batch = consumer.receive_batch(min(_BATCH, most - count), _LOOK_SECONDS)
        yield from batch
        count += len(batch)
        if batch:
            heard = time.monotonic()
        elif time.monotonic() - heard >= timeout:
            break
    consumer.leave()
    with contextlib.suppress(QueueClosed):
        # It has left, and nothing more was started.
        while count < most:
            batch = consumer.receive_batch(most - count, 0.0)
            yield from batch
            count += len(batch)


def _settle(service: "QueueService", consumer: "QueueConsumer", held: "list[Message]", *, ack: bool) -> None:
    """Ack messages or give them back, and wait for the broker. Raises `MarkerUnknown`."""
    from thresher.queue import MarkerUnknown  # noqa: PLC0415

    consumer.leave()
    for message in held:
        if ack:
            message.ack()
        else:
            message.nack()
    answered = consumer.flush()
    unknown = next(each.value for each in service.metrics() if each.family.name == _UNKNOWN_MARKERS)
    if not answered or unknown:
        raise MarkerUnknown("the broker has not confirmed every ack: some of what was printed may be redelivered")
