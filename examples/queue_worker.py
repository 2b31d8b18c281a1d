"""A worker that processes the messages of a queue, several at a time, until it is told to stop.

    thresher stack up
    thresher queue init --bootstrap-servers HOST:PORT --message-topic messages --marker-topic markers
    THRESHER_BOOTSTRAP_SERVERS=HOST:PORT THRESHER_MESSAGE_TOPIC=messages THRESHER_MARKER_TOPIC=markers \
        python examples/queue_worker.py orders

A message is acked when the handler returns. When it raises, the message comes again, later each time. The first SIGTERM
or SIGINT lets the handlers finish. The second does not wait for them: their messages are given back at once.
"""

import logging
import os
import sys

from thresher.queue import Message, QueueService
from thresher.queue.configuration import load_queue_config


def handle(message: Message) -> None:
    """Process a message; one that can never be processed becomes a dead letter."""
    if not message.payload:
        message.reject("it is empty")
        return
    print(f"{message.id}: {message.payload.decode(errors='replace')} (delivery {message.delivery_count})", flush=True)


def main() -> None:
    """Work on the queue that is named."""
    logging.basicConfig(level=logging.INFO)
    config = load_queue_config(None, {}, os.environ).form
    with QueueService(config) as service:
        service.queue(sys.argv[1]).consumer().run(handle, concurrency=4)


if __name__ == "__main__":
    main()
