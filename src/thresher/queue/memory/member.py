"""One consumer in memory. For `QueueConsumer` it replaces the consumer group, the markers and the KeepAlive thread."""

from collections.abc import Callable

from thresher.queue.buffer import ReceiveBuffer
from thresher.queue.memory.tracker import MemoryTracker, Share
from thresher.queue.message import Message, Settlement
from thresher.queue.metrics import Figures


class MemoryBuffer(ReceiveBuffer):
    """A receive buffer that uses the tracker's lock, and redelivers due messages before it waits.

    One lock for both: whether the application has received a message is decided before any thread can give it back.
    """

    def __init__(self, tracker: MemoryTracker) -> None:
        super().__init__(tracker.changed)
        self._look = tracker.look

    def take(
        self, most: int, seconds: float | None, taken: Callable[[list[Message]], list[Message]] = lambda found: found
    ) -> list[Message]:
        """Return up to `most` messages, as `ReceiveBuffer` does."""
        self._look()
        return super().take(most, seconds, taken)


class MemoryMember:
    """One consumer's membership in its queue. Safe from any thread."""

    def __init__(self, queue: bytes, tracker: MemoryTracker, figures: Figures) -> None:
        self._tracker, self._figures = tracker, figures
        self.buffer = MemoryBuffer(tracker)
        self._share = Share(queue, self.buffer, self)

    def __len__(self) -> int:
        return len(self._share.entries)

    def start(self) -> None:
        """Join the queue."""
        self._tracker.join(self._share)

    def stop(self, seconds: float) -> bool:  # noqa: ARG002 - there is nothing to wait for
        """Get no more messages."""
        self._tracker.leave(self._share)
        self.buffer.end()
        return True

    def received(self, messages: list[Message]) -> list[Message]:
        """Register that the application has received these messages, and return them."""
        self._tracker.received(self._share, messages)
        self._figures.count("consumed", len(messages))
        return messages

    def settle(self, message: Message, settlement: Settlement, *, sync: bool) -> None:  # noqa: ARG002 - it is done
        """Settle a message."""
        self._figures.settled(settlement, self._tracker.settle(self._share, message, settlement))

    def extend(self, message: Message, seconds: float) -> None:  # noqa: ARG002 - nothing is redelivered by a time-out
        """Check that a message is in progress. There is no time-out to extend."""
        self._tracker.require(self._share, message)

    def give_back(self) -> None:
        """Give back the unsettled messages."""
        self._figures.count("given_back", self._tracker.give_back(self._share))

    def flush(self, seconds: float) -> bool:  # noqa: ARG002 - there is nothing to wait for
        """Return True: every marker is answered at once."""
        return True

    def add(self, kept: object) -> None:
        """Do nothing: there is no time-out, so no message needs KeepAlives."""

    def remove(self, kept: object) -> None:
        """Do nothing: there is no time-out, so no message needs KeepAlives."""
