"""Client factories of a caller's own, which shards use. Their clients add a header to records."""

from typing import Any

from confluent_kafka import Producer


class MarkedProducer:
    """Adds a header to every record."""

    def __init__(self, properties: dict[str, Any]) -> None:
        self._producer = Producer(properties)

    def __len__(self) -> int:
        return len(self._producer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def produce(self, *given: Any) -> None:
        *others, headers = given
        produce: Any = self._producer.produce
        produce(*others, [*(headers or []), ("made-by", b"the caller")])


def marked_producer(properties: dict[str, Any]) -> Any:
    return MarkedProducer(properties)
