"""Receives messages for a shell, up to a number and a time limit, and settles each message after it was printed.

1. A message is printed and flushed to standard output, and only then settled.
2. An ack lets the consumer start another message. So the acks of the last messages are sent after the consumer has left
   the group: no message is started that is not printed.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thresher.queue import Message, QueueConsumer, QueueService

# Messages received at a time; and seconds between two checks for a stop.
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
    """Print up to `most` messages and settle them; return their number. At most `most` are in progress at once.

    Raises `MarkerUnknown` if the broker has not confirmed every ack, and passes on errors of consumer and printing.
    """
    # After this many messages, an ack could start a message too many.
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
            # Printed messages are settled, whatever ended the loop.
            _settle(service, consumer, held, ack=ack)
    return received


def _messages(consumer: "QueueConsumer", most: int, timeout: float, stopped: Callable[[], bool]) -> "Iterator[Message]":
    """Yield messages until `most`, `timeout` or a stop. Then leave the group, and yield messages already started."""
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
        # Raised when the consumer has left, and all started messages were yielded.
        while count < most:
            batch = consumer.receive_batch(most - count, 0.0)
            yield from batch
            count += len(batch)


def _settle(service: "QueueService", consumer: "QueueConsumer", held: "list[Message]", *, ack: bool) -> None:
    """Ack or nack messages, and wait for the broker. Raises `MarkerUnknown`."""
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
        raise MarkerUnknown("the broker has not confirmed every ack: some printed messages may be redelivered")
