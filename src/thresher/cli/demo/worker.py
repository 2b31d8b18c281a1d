"""A consumer of the demo, as a separate program: it works on each message for a moment, and acks it.

It prints each message when it starts, and again when the work is done, before the ack.

python -m thresher.cli.demo.worker FILE QUEUE
"""

import json
import sys
import time
from pathlib import Path

from thresher.core.signals import stopped_by_signals
from thresher.queue import QueueService
from thresher.queue.configuration import load_queue_config

# Longer than the time between two messages, so that a consumer is nearly always at work.
_WORK_SECONDS = 0.006


def work(file: Path, queue: str) -> None:
    """Work until SIGTERM."""
    stopped: list[bool] = []
    config = load_queue_config(file, {}, {}).form
    with (
        stopped_by_signals(lambda: stopped.append(True)),
        QueueService(config) as service,
        service.queue(queue).consumer() as consumer,
    ):
        while not stopped:
            for message in consumer.receive_batch(1, 0.2):
                payload = message.payload.decode()
                _say({"started": payload})
                time.sleep(_WORK_SECONDS)
                _say({"payload": payload, "delivery_count": message.delivery_count})
                message.ack()


def _say(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    work(Path(sys.argv[1]), sys.argv[2])
