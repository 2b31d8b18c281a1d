"""A message topic and a marker topic, and a tracker of them with its status page."""

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Producer

from thresher.devstack.ports import free_port
from thresher.queue.configuration import QueueConfig, configured
from thresher.queue.topics import init_topics
from thresher.queue.wire.marker import Marker, MarkerType, MessageId, encode

PAYLOAD_BYTES = 256
QUEUE = b"bench"
UP_SECONDS = 300.0
_HOURS_MS = 10 * 3_600_000
_LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class MarkerPlace:
    """A message topic and a marker topic, with one partition each."""

    config: QueueConfig

    @classmethod
    def new(cls, bootstrap: str) -> "MarkerPlace":
        """Create the topics."""
        name = uuid.uuid4().hex[:8]
        keys = {"bootstrap-servers": bootstrap, "message-topic": f"{name}-messages", "marker-topic": f"{name}-markers"}
        config = configured(keys)
        init_topics(config, partitions=1, marker_partitions=1)
        return cls(config)

    def start(self, messages: int, *, first: int = 0) -> None:
        """Write Starts of this many messages, without Ends."""
        self._write((start_of(number) for number in range(first, first + messages)), messages)

    def pass_through(self, messages: int, *, first: int) -> None:
        """Write Starts and Ends of this many messages, a few hundred in progress at a time, as busy consumers do."""
        ahead = 500

        def markers() -> Any:
            for number in range(first, first + messages + ahead):
                if number < first + messages:
                    yield start_of(number)
                if number >= first + ahead:
                    yield encode(Marker(type=MarkerType.END, message_id=MessageId(0, number - ahead)))

        self._write(markers(), 2 * messages)

    def _write(self, markers: Any, count: int) -> None:
        producer = Producer(
            {**self.config.clients, "linger.ms": 5, "compression.type": "lz4", "queue.buffering.max.messages": 200_000}
        )
        for marker in markers:
            while True:
                try:
                    producer.produce(self.config.marker_topic, marker, QUEUE, 0)
                    break
                except BufferError:
                    producer.poll(0.1)
        if producer.flush(120):
            raise TimeoutError(f"the broker did not take {count} markers")


def start_of(number: int, after_ms: int = _HOURS_MS, payload: bytes = bytes(PAYLOAD_BYTES)) -> bytes:
    """Return a Start as a consumer writes it."""
    message_id = MessageId(0, number)
    return encode(
        Marker(
            type=MarkerType.START,
            message_id=message_id,
            redeliver_after_ms=after_ms,
            key=QUEUE,
            value=payload,
            origin_id=message_id,
            enqueued_at_ms=1_700_000_000_000 + number,
        )
    )


class TrackerProgram:
    """`thresher queue track`, as a user starts it."""

    def __init__(self, config: QueueConfig, **section: Any) -> None:
        self._said = tempfile.NamedTemporaryFile("w+")  # noqa: SIM115 - closed with it
        self._file = tempfile.NamedTemporaryFile("w+", suffix=".yaml")  # noqa: SIM115 - closed with it
        self.at = f"127.0.0.1:{free_port()}"
        keys = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
        yaml.safe_dump({**keys, "redelivery-tracker": {"status": self.at, **section}}, self._file)
        self._file.flush()
        command = [sys.executable, "-m", "thresher", "queue", "track", "-c", self._file.name]
        self.process = subprocess.Popen(command, stdout=self._said, stderr=self._said)

    def __enter__(self) -> "TrackerProgram":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(60)
        self._said.close()
        self._file.close()

    def said(self) -> str:
        """Return its log."""
        return Path(self._said.name).read_text(errors="replace")

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition while the program runs."""
        deadline = time.monotonic() + UP_SECONDS
        while not condition():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise TimeoutError(f"the program did not get this far: {self.said()[-3000:]}")
            time.sleep(_LOOK_SECONDS)

    def status(self) -> dict[str, Any]:
        """Return its status page; empty before it has one."""
        try:
            with urllib.request.urlopen(f"http://{self.at}/status", timeout=10) as answer:
                found: dict[str, Any] = json.load(answer)
        except OSError:
            return {}
        return found

    def markers(self) -> int:
        """Return the number of markers that it has read."""
        found = self.status()
        return int(found.get("started", 0)) + int(found.get("ended", 0))

    @property
    def is_tracking(self) -> bool:
        """Whether it has read all markers that were there when it took over."""
        return "is tracking" in self.said()
