"""Producers of a run with faults: they send messages with unique identities to several queues until `stop`."""

import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from tests.queue.verdict import payload_of
from thresher.core.errors import ThresherError
from thresher.queue import MessageId, QueueService, SendRefused

_END_SECONDS = 120.0


class QueueLoad:
    """Sends messages at a rate, to each queue in turn, and keeps the outcome of each by its identity."""

    def __init__(self, keys: Mapping[str, Any], queues: Iterable[str], *, rate: float) -> None:
        self._service = QueueService(keys)
        self._producers = {queue: self._service.queue(queue).producer() for queue in queues}
        self._numbers = dict.fromkeys(self._producers, 0)
        self._rate = rate
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.sent: set[str] = set()
        self.confirmed: dict[str, MessageId] = {}
        self.refused: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self, queue: str, size: int = 0) -> None:
        """Send one more message to a queue. Until it is confirmed or refused, its outcome is unknown."""
        with self._lock:
            self._numbers[queue] += 1
            identity = f"{queue}/{self._numbers[queue]}"
            self.sent.add(identity)
        try:
            self._producers[queue].send_async(payload_of(identity, size), callback=partial(self._answered, identity))
        except SendRefused as error:
            self.refused[identity] = str(error)
        except ThresherError:
            pass  # the client's queue stays full: the outcome is unknown

    def stop(self) -> None:
        """Stop, and wait for the broker's answers. Idempotent."""
        self._stop.set()
        self._thread.join(_END_SECONDS)
        self._service.close()

    def _run(self) -> None:
        began, count = time.monotonic(), 0
        while not self._stop.wait(0.02):
            while count < (time.monotonic() - began) * self._rate:
                for queue in self._producers:
                    self.send(queue)
                    count += 1

    def _answered(self, identity: str, sent: Future[MessageId]) -> None:
        error = sent.exception()
        if error is None:
            self.confirmed[identity] = sent.result()
        elif isinstance(error, SendRefused):
            self.refused[identity] = str(error)
