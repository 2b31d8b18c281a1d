"""Which backend is meant: that of a block, else the publisher's own, else the one for all."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Any

from thresher.core.errors import InvalidInput, shorten
from thresher.publisher.memory_backend import MemoryBackend
from thresher.publisher.port import Backend


class BackendUnknown(InvalidInput):
    """There is no backend of that name."""


class Kind(StrEnum):
    """The backends there are by name."""

    KAFKA = "kafka"
    KAFKA_ASYNC = "kafka_async"
    OUTBOX = "outbox"
    MEMORY = "memory"


# Deimos' name.
_ALIASES = {"db": Kind.OUTBOX}
Choice = Kind | Backend

_for_all: list[Choice] = [Kind.KAFKA]
_in_block: ContextVar[Choice | None] = ContextVar("thresher_publisher_backend", default=None)


def chosen(given: str | Backend) -> Choice:
    """Return the backend that is meant by a name, or the one that was given. Raises `BackendUnknown`."""
    if not isinstance(given, str):
        if not all(callable(getattr(given, name, None)) for name in ("publish", "flush", "close")):
            raise BackendUnknown(f"a backend is a name, or has publish, flush and close: {shorten(given)} has not")
        return given
    try:
        return _ALIASES.get(given) or Kind(given)
    except ValueError:
        names = ", ".join([*Kind, *_ALIASES])
        raise BackendUnknown(
            f"there is no backend {shorten(given)}: one of {names}, or an object of your own"
        ) from None


def set_backend(given: str | Backend) -> None:
    """Choose the backend of all publishers that have none of their own."""
    _for_all[:] = [chosen(given)]


@contextmanager
def backend(given: str | Backend) -> Iterator[Any]:
    """Choose the backend of all publishers while the block lasts, in this thread or task, and give it.

    `memory` is a new one each time, whose `messages` are what was published.
    """
    choice: Choice = chosen(given)
    if choice is Kind.MEMORY:
        choice = MemoryBackend()
    token = _in_block.set(choice)
    try:
        yield choice
    finally:
        _in_block.reset(token)


def effective(own: Choice | None) -> Choice:
    """Return which backend a publisher uses now, that has this one of its own."""
    return next(choice for choice in (_in_block.get(), own, _for_all[0]) if choice is not None)
