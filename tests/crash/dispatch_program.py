"""An application with a dispatcher, as a program that kills itself at a given point. Takes its settings as JSON.

python -m tests.crash.dispatch_program '{"dsn": "…", "kafka": {…}, "topic": "t", "rows": 20, "die": "sent"}'
"""

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg

from thresher.outbox import Message, Outbox
from thresher.publisher import Dispatcher
from thresher.publisher.dispatch_table import DispatchTable
from thresher.publisher.kafka_backend import KafkaBackend

# Points: rows are locked; rows are sent and not stamped; rows are stamped and not committed.
POINTS = ("locked", "sent", "stamped")


def main(given: Mapping[str, Any]) -> int:
    locked = DispatchTable.locked

    def die(*_: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def locked_until_death(*arguments: Any, **more: Any) -> Iterator[Any]:
        with locked(*arguments, **more) as (rows, stamp):
            yield rows, lambda ids: die(stamp(ids) if given["die"] == "stamped" else None)

    DispatchTable.locked = locked_until_death  # type: ignore[method-assign]
    if given["die"] == "locked":
        KafkaBackend.send = die  # type: ignore[method-assign,assignment]
    outbox = Outbox()
    with psycopg.connect(given["dsn"]) as connection:
        messages = [Message(topic=given["topic"], key=f"k{n % 5}", value=str(n)) for n in range(given["rows"])]
        receipts = outbox.stash_many(connection, messages, receipts=True)
    Dispatcher(lambda: psycopg.connect(given["dsn"]), given["kafka"]).clear(receipts)
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
