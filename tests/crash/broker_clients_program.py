"""Uses a broker through each of our clients until its standard input ends, and prints what each one has achieved."""

import contextlib
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

from confluent_kafka import KafkaException

from thresher.core.errors import ThresherError
from thresher.kafka.admin import Admin
from thresher.kafka.assigned_reader import AssignedReader, ConsumerRecord
from thresher.outbox import Message
from thresher.publisher.kafka_backend import KafkaBackend


def _main(bootstrap: str, topic: str) -> None:
    done: Counter[str] = Counter()
    kafka = {"bootstrap.servers": bootstrap}
    admin, old = Admin.of(kafka), KafkaBackend(kafka, waits=True)

    def ask() -> None:
        # New clients too: what a client asks first differs from what it asks later.
        for each in (admin, Admin.of(kafka)):
            each.require_answer()
            each.cluster()
            each.facts([topic, f"{topic}.missing"])
            each.topics(topic)
        done["asked"] += 1

    def send() -> None:
        old.publish([Message(topic=topic, key="k", value=b"v", partition=place) for place in range(2)], None)
        done["sent"] += 1

    def read() -> None:
        with AssignedReader(topic, kafka) as reader:
            while True:
                done["read"] += sum(isinstance(each, ConsumerRecord) for each in reader.poll(0.1))

    def again(act: Callable[[], None]) -> None:
        while True:
            with contextlib.suppress(KafkaException, ThresherError):
                act()
            time.sleep(0.05)

    for act in (ask, send, read):
        threading.Thread(target=again, args=(act,), daemon=True).start()
    for _ in sys.stdin:
        sys.stdout.write(json.dumps(done) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main(*sys.argv[1:])
