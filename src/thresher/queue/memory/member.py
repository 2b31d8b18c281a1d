"""One consumer in memory: it plays the parts that Kafka's group, markers and keep-alive have for `QueueConsumer`."""

from collections.abc import Callable

from thresher.queue.buffer import ReceiveBuffer
from thresher.queue.memory.tracker import MemoryTracker, Share
from thresher.queue.message import Message, Settlement
from thresher.queue.metrics import Figures


class MemoryBuffer(ReceiveBuffer):
    """A receive buffer behind the tracker's lock, which sees to what is due before it waits.

    One lock for both: what the application has taken is decided before anybody can give it back.
    """

    def __init__(self, tracker: MemoryTracker) -> None:
        super().__init__(tracker.changed)
        self._look = tracker.look

    def take(
        self, most: int, seconds: float | None, taken: Callable[[list[Message]], list[Message]] = lambda found: found
    ) -> list[Message]:
        """Return up to so many messages, as `ReceiveBuffer` does."""
        self._look()
        return super().take(most, seconds, taken)


class MemoryMember:
    """One consumer's place in its queue. Safe from any thread."""

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
        """Get no further messages."""
        self._tracker.leave(self._share)
        self.buffer.end()
        return True

    def received(self, messages: list[Message]) -> list[Message]:
        """Take in that the application has these messages now, and return them."""
        self._tracker.received(self._share, messages)
        self._figures.count("consumed", len(messages))
        return messages

    def settle(self, message: Message, settlement: Settlement, *, sync: bool) -> None:  # noqa: ARG002 - it is done
        """End a message's progress."""
        self._figures.settled(settlement, self._tracker.settle(self._share, message, settlement))

    def extend(self, message: Message, seconds: float) -> None:  # noqa: ARG002 - nothing is redelivered by a time-out
        """Require that a message is in progress."""
        self._tracker.require(self._share, message)

    def give_back(self) -> None:
        """Give back what was not settled."""
        self._figures.count("given_back", self._tracker.give_back(self._share))

    def flush(self, seconds: float) -> bool:  # noqa: ARG002 - there is nothing to wait for
        """Return that all is answered."""
        return True

    def add(self, kept: object) -> None:
        """Keep nothing alive: there is no time-out."""

    def remove(self, kept: object) -> None:
        """Keep nothing alive: there is no time-out."""
