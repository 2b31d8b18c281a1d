"""Decides what to try after the broker has refused a record of a transaction: nothing of it was committed.

1. Smaller transactions follow, until a message is refused alone. After a success they grow again, step by step.
2. A message that its queue's topic refuses alone becomes a dead letter. So does one whose Start cannot be rewritten:
   retention would remove the Start, and the next tracker could not rebuild the message.
3. A dead letter that is refused alone is written in smaller and smaller parts, at last without its content.
"""

from dataclasses import replace

from thresher.queue.wire.dead_letter import next_part_bytes
from thresher.tracker.protocol.started import Started
from thresher.tracker.protocol.state import Messages
from thresher.tracker.protocol.transaction import Dead, Fate, RecordRefused, RefusedKind, Transaction


class Refusals:
    """The refusals of one partition. For one thread."""

    def __init__(self, most: int) -> None:
        """`most` is the largest number of messages of a transaction."""
        self._limit = most
        # How many messages, and how many copies, the next transaction may have.
        self.most = self.most_copies = most
        # The parts in which refused letters are tried next.
        self._part_bytes: dict[Started, int] = {}

    def committed(self, transaction: Transaction) -> None:
        """Register that a transaction was committed."""
        if transaction.copies:
            self.most_copies = min(self._limit, 2 * self.most_copies)
        if transaction.fates:
            # Not at once the limit, because other messages may be refused too.
            self.most = min(self._limit, 2 * self.most)
            for message in transaction.messages:
                self._part_bytes.pop(message, None)

    def refused(self, transaction: Transaction, why: str, kind: RefusedKind, messages: Messages, now_ms: int) -> None:
        """Register a refusal. Raises `RecordRefused` if a letter is refused even without its content."""
        count = len(transaction.messages)
        if kind is RefusedKind.COPY:
            self.most_copies = max(1, count // 2)
            if count == 1:
                _give_up(transaction.messages[0], f"its Start cannot be written again: {why}", messages, now_ms)
            return
        if count == 1 and kind is RefusedKind.LETTER:
            self._write_smaller(transaction, why)
        elif count == 1:
            _give_up(transaction.messages[0], f"the queue's topic refuses the message: {why}", messages, now_ms)
        self.most = max(1, count // 2)

    def sized(self, message: Started, fate: Fate) -> Fate:
        """Return a message's fate; if its letter was refused, with smaller parts."""
        if not self._part_bytes or not isinstance(fate, Dead):
            return fate
        return replace(fate, part_bytes=self._part_bytes.get(message))

    def _write_smaller(self, transaction: Transaction, why: str) -> None:
        message, fate = transaction.messages[0], transaction.fates[0]
        smaller = next_part_bytes(fate.part_bytes if isinstance(fate, Dead) else None)
        if smaller is None:
            raise RecordRefused(
                f"the dead-letter topic refuses the letter of message {fate.marker.message_id} even without its "
                f"content: {why}; run 'thresher queue init' to check the topic's settings"
            )
        # A message may have ended meanwhile.
        self._part_bytes = {each: size for each, size in self._part_bytes.items() if each.content is not None}
        self._part_bytes[message] = smaller


def _give_up(message: Started, why: str, messages: Messages, now_ms: int) -> None:
    """Make a message a dead letter as soon as it is due, which is now."""
    if message.reject_reason is None:
        message.reject_reason, message.reject_kind = why, "refused"
        message.timeout_ms = 0
        messages.set_deadline(message, min(message.deadline_ms, now_ms))
