"""The headers of a record that was read. Anybody may have written it: a malformed header harms no reader."""

from collections.abc import Mapping

from confluent_kafka import Message

RecordHeaders = tuple[tuple[str, bytes | None], ...]


def headers_of(message: Message) -> RecordHeaders:
    """Return the headers of a record; none of them where the name of one is no text."""
    try:
        found = message.headers()
    except UnicodeDecodeError:
        # The record is worth more than its headers.
        return ()
    if not found:
        return ()
    pairs = found.items() if isinstance(found, Mapping) else found
    return tuple((name, value.encode() if isinstance(value, str) else value) for name, value in pairs)
