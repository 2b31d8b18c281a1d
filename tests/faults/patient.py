"""The real producer, for a relay whose figures a test compares exactly.

A commit that a busy broker answers late is in doubt, and what recovery then finds is counted as recovered, not as
relayed. Where no connection breaks it was asked for once, however long it took: here it is taken for certain.
"""

from typing import Any

from confluent_kafka import Producer

from thresher.kafka.transaction_timeouts import TransactionTimeouts

PRODUCER = f"{__name__}:producer"


def producer(properties: dict[str, Any]) -> Producer:
    """Called in the worker, whose process has one attempt and no other."""
    TransactionTimeouts.certain_seconds = property(lambda _: 60.0)  # type: ignore[assignment, method-assign]
    return Producer(properties)
