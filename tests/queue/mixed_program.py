"""Consumers of several queues as one program: it notes each message that it receives and settles.

    python -m tests.queue.mixed_program '{"keys": {…}, "queues": ["…"], "notes": "…", "die": "committed", "after": 2}'

`received` is noted before the message is handled; `acked` and `given-back` once the broker has confirmed it. A
message's number decides how it is handled: some are held so long that they are kept alive, some are extended, nacked or
rejected. With `"die"` the process kills itself at a crash point, as `tests.queue.program` does.
"""

import faulthandler
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any

from tests.faults.drift import STACKS_SIGNAL
from tests.queue.program import Dying
from tests.queue.verdict import identity_of
from thresher.observe.logs import LogFormat, configure_logging
from thresher.queue import MarkerUnknown, Message, QueueConsumer, QueueService

THREADS = 3
# Longer than half of the redelivery time-out, when a message is kept alive.
HELD_SECONDS = 3.0
NACKED_SECONDS = 0.5


class Working:
    """The threads of one program."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._point, self._after = given.get("die"), int(given.get("after", 1))
        self.clients = Dying(self._point, self._after, signal.SIGKILL)
        self._notes = os.open(given["notes"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.stop = threading.Event()
        self.failed = False
        self._received = 0

    def note(self, *words: object) -> None:
        """Write a line without buffering: it is complete even if the process is killed."""
        os.write(self._notes, " ".join(map(str, words)).encode() + b"\n")

    def work(self, consumer: QueueConsumer) -> None:
        """Receive and settle messages until the program stops."""
        try:
            while not self.stop.is_set():
                if (message := consumer.receive(0.2)) is not None:
                    self._received += 1
                    self.note("received", message.id, identity_of(message.payload))
                    self._die_at("working")
                    self._settle(message)
        except BaseException:
            self.failed = True
            self.stop.set()
            raise

    def _settle(self, message: Message) -> None:
        number = int(identity_of(message.payload).rpartition("/")[2])
        try:
            # A redelivered message is acked: otherwise it would be redelivered for ever.
            match number % 50 if message.delivery_count == 1 else None:
                case 0:
                    self.stop.wait(HELD_SECONDS)
                case 1:
                    message.nack(NACKED_SECONDS, sync=True)
                    return self.note("given-back", message.id)
                case 2:
                    message.reject("as the soak wants it", sync=True)
                    return self.note("given-back", message.id)
                case 3:
                    message.extend(60)
            sync = number % 2 == 0 or self._point == "acked"
            message.ack(sync=sync)
            if sync:
                self.note("acked", message.id)
                self._die_at("acked")
        except MarkerUnknown:
            self.note("unknown", message.id)

    def _die_at(self, point: str) -> None:
        if self._point == point and self._received >= self._after:
            self.clients.die()


def main(given: Mapping[str, Any]) -> int:
    faulthandler.register(STACKS_SIGNAL)
    configure_logging(LogFormat.JSON, level="warning")
    working = Working(given)
    signal.signal(signal.SIGTERM, lambda *_: working.stop.set())
    with QueueService(given["keys"], clients=working.clients) as service:
        consumers = [service.queue(each).consumer() for each in given["queues"]]
        threads = [
            threading.Thread(target=working.work, args=(consumer,), daemon=True)
            for consumer in consumers
            for _ in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        working.note("ready")
        for thread in threads:
            thread.join()
    working.note("closed")
    return 1 if working.failed else 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
