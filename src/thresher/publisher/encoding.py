"""Encoders of keys and values. Any serializer of confluent-kafka can be used, including those for Schema Registry."""

import json
from collections.abc import Callable
from typing import Any

from confluent_kafka.serialization import MessageField, SerializationContext

from thresher.core.errors import InvalidInput, shorten

# Called with the content to encode and its context: topic, key or value, headers.
Encoder = Callable[[Any, SerializationContext], bytes | None]


class EncodingFailed(InvalidInput):
    """A message could not be encoded. No message of the call was written or sent."""


def as_is(given: Any, _: SerializationContext) -> bytes | None:
    """Return bytes and None as they are, and text as UTF-8."""
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    raise TypeError(f"bytes, text or None is needed, not {type(given).__name__}: give an encoder")


def as_json(given: Any, _: SerializationContext) -> bytes | None:
    """Encode as JSON. None stays None: a tombstone, not a JSON `null`."""
    if given is None:
        return None
    return json.dumps(given, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def encoded(encoder: Encoder, given: Any, topic: str, field: MessageField, headers: Any) -> bytes | None:
    """Return the encoded content. Raises `EncodingFailed` for any error of the encoder."""
    try:
        content = encoder(given, SerializationContext(topic, field, headers))
    except Exception as error:
        raise EncodingFailed(
            f"the {field} of a message for {topic} cannot be encoded: {error}; {shorten(given)}"
        ) from error
    if content is not None and not isinstance(content, bytes):
        raise EncodingFailed(f"the encoder of the {field} for {topic} gave {type(content).__name__}, and not bytes")
    return content
