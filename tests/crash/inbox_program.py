"""A consumer with an inbox, as a program that kills itself at a given point. Takes its settings as JSON.

python -m tests.crash.inbox_program '{"dsn": "…", "kafka": {…}, "topic": "t", "die": "worked", "after": 5}'
"""

import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import psycopg
from confluent_kafka import Consumer

from thresher.inbox.consuming import consume
from thresher.inbox.dead import InboxRecord

# Points: before the work; between the work and its commit; between the database's commit and that of the offsets.
POINTS = ("entered", "worked", "committed")


class Dying:
    """Kills the process when its counter reaches zero."""

    def __init__(self, point: str | None, after: int) -> None:
        self._point, self._left = point, after

    def reach(self, point: str) -> None:
        if point != self._point:
            return
        self._left -= 1
        if self._left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


def main(given: Mapping[str, Any]) -> int:
    dying = Dying(given.get("die"), int(given.get("after", 1)))

    class Watched(Consumer):
        def commit(self, *arguments: Any, **named: Any) -> Any:
            dying.reach("committed")
            return super().commit(*arguments, **named)

    consumer = Watched({**given["kafka"], "enable.auto.commit": False, "auto.offset.reset": "earliest"})
    consumer.subscribe([given["topic"]])

    def handle(connection: psycopg.Connection[Any], record: InboxRecord) -> None:
        dying.reach("entered")
        number = int(record.value or b"0")
        if number in given.get("poison", ()):
            raise ValueError("cannot be processed")
        connection.execute("INSERT INTO work VALUES (%s)", [number])
        dying.reach("worked")

    stopped: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    consume(
        consumer,
        lambda: psycopg.connect(given["dsn"]),
        handle,
        context="test",
        attempts=2,
        stop=lambda: bool(stopped),
    )
    consumer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
