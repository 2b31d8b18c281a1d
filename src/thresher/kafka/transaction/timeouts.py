"""The time-outs of a transactional producer, and the bounds within which its answers are certain.

librdkafka silently repeats a request whose connection broke, after a wait. If an answer comes sooner, the request was
sent once. Both bounds follow from that wait, so neither can be configured. A wrong bound would let a late copy of a
request affect the producer's next transaction.
"""

from dataclasses import dataclass
from typing import Any

# The client randomizes its back-off between 0.8 and 1.2 times the configured value.
_CERTAIN = 0.75
# librdkafka repeats TxnOffsetCommit after this time, whatever its configuration says.
_OFFSETS_REPEAT_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionTimeouts:
    """How long a transaction may be open, and how long each of the producer's calls may take."""

    transaction_seconds: float = 15.0
    # The time of a record from `produce` to the broker's answer; and how long `flush` waits for it.
    message_seconds: float = 12.0
    flush_seconds: float = 10.0
    # The time-out of a request; and how long a caller waits, which is less: the client has not given up by then.
    socket_seconds: float = 10.0
    answer_seconds: float = 8.0
    init_seconds: float = 30.0
    # How long the broker may answer `init_transactions` that the last transaction is being ended. Usual: milliseconds.
    blocked_seconds: float = 30.0
    # How long the client waits before it repeats a request.
    repeat_seconds: float = 2.0

    def __post_init__(self) -> None:
        if not self.answer_seconds < self.socket_seconds <= self.transaction_seconds:
            raise ValueError(f"answer_seconds < socket_seconds <= transaction_seconds does not hold: {self}")
        if not self.flush_seconds <= self.message_seconds <= self.transaction_seconds:
            raise ValueError(f"flush_seconds <= message_seconds <= transaction_seconds does not hold: {self}")

    @classmethod
    def within(cls, transaction_seconds: float) -> "TransactionTimeouts":
        """Return time-outs for shorter or longer transactions, in the proportions of the defaults."""
        usual = cls()
        scale = transaction_seconds / usual.transaction_seconds
        return cls(
            transaction_seconds=transaction_seconds,
            message_seconds=scale * usual.message_seconds,
            flush_seconds=scale * usual.flush_seconds,
            socket_seconds=scale * usual.socket_seconds,
            answer_seconds=scale * usual.answer_seconds,
        )

    @property
    def certain_seconds(self) -> float:
        """The bound for a commit: if an answer comes within it, the request was sent once."""
        return _CERTAIN * self.repeat_seconds

    @property
    def certain_offsets_seconds(self) -> float:
        """The bound for `send_offsets`: if an answer comes within it, the request was sent once."""
        return _CERTAIN * min(self.repeat_seconds, _OFFSETS_REPEAT_SECONDS)

    def properties(self) -> dict[str, Any]:
        """Return the client's properties for these time-outs."""
        return {
            "transaction.timeout.ms": _ms(self.transaction_seconds),
            "message.timeout.ms": _ms(self.message_seconds),
            "socket.timeout.ms": _ms(self.socket_seconds),
            "retry.backoff.ms": _ms(self.repeat_seconds),
            "retry.backoff.max.ms": _ms(self.repeat_seconds),
        }


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
