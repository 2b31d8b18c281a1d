"""A row of the outbox on its way: what it was when it was read, and the record to send."""

from typing import Any, NamedTuple

from thresher.relay.fate import Dead, Filtered

Headers = list[tuple[str, bytes | None]]


class Record(NamedTuple):
    """A record as the producer takes it; `timestamp` in milliseconds, 0 for the time of sending."""

    topic: str
    value: bytes | None
    key: bytes | None
    partition: int
    timestamp: int
    headers: Headers | None


class Row(NamedTuple):
    """A row and what is to become of it. `topic` and `key` are the stored ones: order, holds and blocks go by them."""

    id: int
    # Microseconds since 1970. With the id it tells a row from another that came back under the same id.
    create_time: int
    topic: str
    key: bytes | None
    plan: "Record | Filtered | Dead"

    @property
    def stream(self) -> Any:
        """What order is promised within; None where there is no order to keep."""
        return None if self.key is None else (self.topic, self.key)
