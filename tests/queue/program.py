"""A consumer as a program: it receives messages, notes and acks them, and kills itself at a given point.

    python -m tests.queue.program '{"keys": {…}, "queue": "…", "notes": "…", "die": "committed", "after": 2}'

The clients are the real ones. The transactional client kills its process at the points `polled`, `started`, `offsets`
and `committed`, in its own calls; the application does so at `working` and `acked`. With `"stop"` instead of `"die"`,
the process stops there until it gets SIGCONT.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from thresher.kafka.transaction.timeouts import TransactionTimeouts
from thresher.kafka.transactional import TransactionalProducer
from thresher.queue import QueueService
from thresher.queue.clients import KafkaClients

POINTS = ("polled", "started", "offsets", "committed", "working", "acked")


class Dying(KafkaClients):
    """Kills or stops its process at a point, in the nth transaction with records."""

    def __init__(self, point: str | None, after: int, kind: signal.Signals) -> None:
        self.point, self.left, self.kind, self.records = point, after, kind, False

    def die(self) -> None:
        os.kill(os.getpid(), self.kind)

    def transactional(
        self, transactional_id: str, properties: Mapping[str, Any], timeouts: TransactionTimeouts
    ) -> TransactionalProducer:
        made = super().transactional(transactional_id, properties, timeouts)
        produce = made.produce

        def produced(records: Any) -> None:
            self.records = True
            produce(records)

        made.produce = produced  # type: ignore[method-assign]
        # The point comes after the call: `begin` is the first call for polled records.
        for name, point in (("flush", "started"), ("send_offsets", "offsets"), ("commit", "committed")):
            setattr(made, name, self._dying(getattr(made, name), point))
        begin = made.begin

        def begun() -> None:
            self.records = False
            if self.point == "polled" and self._due():
                self.die()
            begin()

        made.begin = begun  # type: ignore[method-assign]
        return made

    def _dying(self, call: Callable[..., Any], point: str) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            answer = call(*arguments)
            if self.point == point and self.records and self._due():
                self.die()
            return answer

        return called

    def _due(self) -> bool:
        self.left -= 1
        return self.left == 0


def main(given: Mapping[str, Any]) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    receive(given, stop)


def receive(given: Mapping[str, Any], stop: threading.Event) -> None:
    """Receive and ack messages until the event is set."""
    kind = signal.SIGSTOP if "stop" in given else signal.SIGKILL
    point, after = given.get("die") or given.get("stop"), int(given.get("after", 1))
    notes = Path(given["notes"]).open("a", encoding="ascii", buffering=1)  # noqa: SIM115 - a killed process closes it too
    # The first transaction commits the group's first offsets and has no records.
    clients = Dying(point, after + (point == "polled"), kind)
    with QueueService(given["keys"], clients=clients) as service, service.queue(given["queue"]).consumer() as consumer:
        notes.write("ready\n")
        received = 0
        while not stop.is_set():
            message = consumer.receive(0.2)
            if message is None:
                continue
            received += 1
            notes.write(f"received {message.id}\n")
            if point == "working" and received == after:
                clients.die()
            message.ack(sync=point == "acked")
            if point == "acked" and received == after:
                clients.die()
    notes.write("closed\n")
    notes.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
