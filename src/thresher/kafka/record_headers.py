"""The headers of a record that was read. Its writer is unknown, so a malformed header must not break a reader."""

from collections.abc import Mapping

from confluent_kafka import Message

RecordHeaders = tuple[tuple[str, bytes | None], ...]


def headers_of(message: Message) -> RecordHeaders:
    """Return the headers of a record; an empty tuple if any header's name is not valid UTF-8."""
    try:
        found = message.headers()
    except UnicodeDecodeError:
        # The client cannot return the other headers; the record is used without headers.
        return ()
    if not found:
        return ()
    pairs = found.items() if isinstance(found, Mapping) else found
    return tuple((name, value.encode() if isinstance(value, str) else value) for name, value in pairs)
