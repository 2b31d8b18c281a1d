"""The real producer, for a relay whose figures a test compares exactly.

A commit that a busy broker answers late is in doubt, and recovery counts its rows as recovered, not as relayed. Without
a broken connection the client sent the commit once, however late the answer: here it counts as certain.
"""

from typing import Any

from confluent_kafka import Producer

from thresher.kafka.transaction.timeouts import TransactionTimeouts

PRODUCER = f"{__name__}:producer"


def producer(properties: dict[str, Any]) -> Producer:
    """Return the real producer. Called in the worker, whose process serves one attempt."""
    TransactionTimeouts.certain_seconds = property(lambda _: 60.0)  # type: ignore[assignment, method-assign]
    return Producer(properties)
