"""Chooses the backend of a publisher: that of the `with` block, else the publisher's own, else the process-wide one."""

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
    """The names of the built-in backends."""

    KAFKA = "kafka"
    KAFKA_ASYNC = "kafka_async"
    OUTBOX = "outbox"
    MEMORY = "memory"


# Deimos' name for the outbox.
_ALIASES = {"db": Kind.OUTBOX}
Choice = Kind | Backend

_for_all: list[Choice] = [Kind.KAFKA]
_in_block: ContextVar[Choice | None] = ContextVar("thresher_publisher_backend", default=None)


def chosen(given: str | Backend) -> Choice:
    """Return the backend for a name, or the given object. Raises `BackendUnknown`."""
    if not isinstance(given, str):
        if not all(callable(getattr(given, name, None)) for name in ("publish", "flush", "close")):
            raise BackendUnknown(
                f"{shorten(given)} is no backend: give a name, or an object with publish, flush and close"
            )
        return given
    try:
        return _ALIASES.get(given) or Kind(given)
    except ValueError:
        names = ", ".join([*Kind, *_ALIASES])
        raise BackendUnknown(
            f"there is no backend {shorten(given)}: give one of {names}, or an object of your own"
        ) from None


def set_backend(given: str | Backend) -> None:
    """Set the process-wide backend, for all publishers that have none of their own."""
    _for_all[:] = [chosen(given)]


@contextmanager
def backend(given: str | Backend) -> Iterator[Any]:
    """Set the backend of all publishers for a `with` block, in this thread or task, and yield it.

    `memory` yields a new backend each time; its `messages` are what the block has published.
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
    """Return the backend that a publisher uses now. `own` is the publisher's own backend, or None."""
    return next(choice for choice in (_in_block.get(), own, _for_all[0]) if choice is not None)
