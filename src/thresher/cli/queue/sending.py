"""Sends lines as messages, and prints each id, in the order of the lines, when the broker has confirmed it.

1. One thread reads and sends lines; another waits for the broker and prints ids. So an id is printed before the next
   line is read, and at most 10,000 messages are unconfirmed.
2. Reading ends with the first message that fails, or when ids can no longer be printed. Messages sent before are waited
   for.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from thresher.cli.output import counted, note
from thresher.core.errors import ThresherError

if TYPE_CHECKING:
    from thresher.queue import MessageId, QueueProducer

# The most unconfirmed lines; seconds between two progress notes; the most failures that are shown.
_IN_FLIGHT, _TELL_SECONDS, _TELL_FAILURES = 10_000, 5.0, 100


def send_lines(
    producer: "QueueProducer",
    lines: Iterable[bytes],
    headers: Sequence[tuple[str, bytes]],
    print_id: "Callable[[MessageId], None]",
    **limits: Any,
) -> None:
    """Send each line as a message, with these limits, and print the ids.

    Raises the first error, with the number of its line.
    """
    confirming = _Confirming(print_id)
    try:
        for number, line in enumerate(lines, 1):
            try:
                sent = producer.send_async(line.removesuffix(b"\n"), headers, **limits)
            except ThresherError as error:
                confirming.failed.append((number, error))
                break
            confirming.take(number, sent)
            if confirming.failed or confirming.unprinted is not None:
                break
    finally:
        confirming.close()
    if confirming.unprinted is not None:
        raise confirming.unprinted
    if confirming.failed:
        _raise_first(sorted(confirming.failed, key=lambda each: each[0]), confirming.sent)


class _Confirming:
    """The thread that waits for the broker and prints ids. `failed` has the line numbers and errors of failed sends."""

    def __init__(self, print_id: "Callable[[MessageId], None]") -> None:
        self._print_id = print_id
        self._waiting: queue.Queue[tuple[int, Future[MessageId]] | None] = queue.Queue(_IN_FLIGHT)
        self.sent = 0
        self.failed: list[tuple[int, ThresherError]] = []
        self.unprinted: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="thresher-queue-ids", daemon=True)
        self._thread.start()

    def take(self, number: int, sent: "Future[MessageId]") -> None:
        """Add the send of a line. Blocks while too many are unconfirmed."""
        self._waiting.put((number, sent))

    def close(self) -> None:
        """Wait until all sends are confirmed or have failed."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        told = time.monotonic()
        while (taken := self._waiting.get()) is not None:
            number, sent = taken
            try:
                message_id = sent.result()
            except ThresherError as error:
                self.failed.append((number, error))
                continue
            self.sent += 1
            if self.unprinted is None:
                try:
                    self._print_id(message_id)
                except OSError as error:
                    self.unprinted = error
            if time.monotonic() - told > _TELL_SECONDS:
                told = time.monotonic()
                note(counted(self.sent, "message sent", "messages sent"))


def _raise_first(failed: list[tuple[int, ThresherError]], sent: int) -> None:
    for number, problem in failed[1:_TELL_FAILURES]:
        note(f"line {number}: {problem}")
    number, first = failed[0]
    also = f", {len(failed) - 1:,} more failed" if len(failed) > 1 else ""
    told = counted(sent, "message was sent", "messages were sent")
    raise type(first)(f"line {number}: {first}; {told}{also}") from first
