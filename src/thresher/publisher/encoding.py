"""Encoders: what makes bytes of keys and values. Any serializer of confluent-kafka's is one, Schema Registry's too."""

import json
from collections.abc import Callable
from typing import Any

from confluent_kafka.serialization import MessageField, SerializationContext

from thresher.core.errors import InvalidInput, shorten

# Called with what is to be encoded, and with where it will be: topic, key or value, headers.
Encoder = Callable[[Any, SerializationContext], bytes | None]


class EncodingFailed(InvalidInput):
    """A message could not be encoded. Nothing was written or sent, of no message."""


def as_is(given: Any, _: SerializationContext) -> bytes | None:
    """Take bytes, text and None as they are."""
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    raise TypeError(f"bytes, text or None is needed, not {type(given).__name__}: give an encoder")


def as_json(given: Any, _: SerializationContext) -> bytes | None:
    """Encode as JSON. None stays None: a tombstone is no `null`."""
    if given is None:
        return None
    return json.dumps(given, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def encoded(encoder: Encoder, given: Any, topic: str, field: MessageField, headers: Any) -> bytes | None:
    """Return content as bytes. Raises `EncodingFailed`, whatever an encoder raises."""
    try:
        content = encoder(given, SerializationContext(topic, field, headers))
    except Exception as error:
        raise EncodingFailed(
            f"the {field} of a message for {topic} cannot be encoded: {error}; {shorten(given)}"
        ) from error
    if content is not None and not isinstance(content, bytes):
        raise EncodingFailed(f"the encoder of the {field} for {topic} gave {type(content).__name__}, and not bytes")
    return content
