"""A message as the application hands it over, before any check."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

Header = tuple[str, bytes | str | None]
# The header by which an inbox recognizes duplicates.
EVENT_ID = "event-id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message to send. Text is stored as UTF-8; the value `None` is a tombstone; the key `None` means no order.

    Headers keep their order and may repeat a name; a mapping is enough if names are unique. `partition` overrides
    Kafka's choice by key; `timestamp` is the record's timestamp. `partition_key`, which only Deimos' table can hold,
    chooses the partition and the order instead of the key. A message is checked by `stash`, not when it is created.
    """

    topic: str
    key: bytes | str | None = None
    value: bytes | str | None = None
    headers: Sequence[Header] | Mapping[str, bytes | str | None] = ()
    partition: int | None = None
    timestamp: datetime | None = None
    partition_key: bytes | str | None = None


def with_event_id(message: Any) -> Any:
    """Return a message with an event id, unless it has one. Anything but a message is returned as it is."""
    headers: Any = getattr(message, "headers", None)
    if not isinstance(message, Message) or isinstance(headers, str | bytes) or not isinstance(headers, Iterable):
        return message
    pairs = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
    if any(isinstance(pair, tuple | list) and len(pair) == 2 and pair[0] == EVENT_ID and pair[1] for pair in pairs):
        return message
    return replace(message, headers=[*pairs, (EVENT_ID, str(uuid.uuid4()))])
