"""A message as the application hands it over, before any check."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

Header = tuple[str, bytes | str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What to send: text is stored as UTF-8, `None` as a value is a tombstone, `None` as a key means no order.

    Headers keep their order and may repeat a name; a mapping serves where names are unique. `partition` overrides
    Kafka's choice by key, `timestamp` is the record's own time. Checked when it is stashed, not when it is made.
    """

    topic: str
    key: bytes | str | None = None
    value: bytes | str | None = None
    headers: Sequence[Header] | Mapping[str, bytes | str | None] = ()
    partition: int | None = None
    timestamp: datetime | None = None
