"""One message in progress."""

from typing import NamedTuple

import pyarrow as pa

Id = tuple[int, int]
# The identity that a message keeps in all deliveries: its origin id, and the time of its first sending.
Origin = tuple[int, int, int]
# Larger Starts are kept compressed: a producer may send a megabyte in a few hundred bytes of zstd. Once there is little
# room, so are all that may become smaller: compressing each would halve the tracker's speed.
_LARGE_BYTES, _SMALL_BYTES = 65_536, 256
_CODEC = pa.Codec("zstd", compression_level=1)


class Packed(NamedTuple):
    """A large Start as it is kept, and its size."""

    compressed: bytes
    size: int


Content = bytes | Packed


def packed(content: bytes, *, has_room: bool = True) -> Content:
    """Return a Start as it is kept. A small one, and one that does not compress, stays as it is.

    What counts as small depends on whether there `has_room`.
    """
    if len(content) < (_LARGE_BYTES if has_room else _SMALL_BYTES):
        return content
    compressed: bytes = _CODEC.compress(content, asbytes=True)
    return Packed(compressed, len(content)) if len(compressed) < len(content) * 3 // 4 else content


def unpacked(content: Content | None) -> bytes:
    """Return a Start as it was read; nothing if the message is no longer in progress."""
    if isinstance(content, Packed):
        found: bytes = _CODEC.decompress(content.compressed, content.size, asbytes=True)
        return found
    return content or b""


def kept_bytes(content: Content | None) -> int:
    """Return the size of a Start as it is kept."""
    return len(content.compressed if isinstance(content, Packed) else content or b"")


def size_of(content: Content | None) -> int:
    """Return the size of a Start as it was read."""
    return content.size if isinstance(content, Packed) else len(content or b"")


class Started:
    """One message in progress. Not a dataclass, to save memory: there may be millions."""

    __slots__ = (
        "content", "deadline_ms", "enqueued_ms", "id", "offset", "origin_id", "queue", "queued_ms", "reject_kind",
        "reject_reason", "started_ms", "timeout_ms", "undelivered", "written_ms",
    )  # fmt: skip

    def __init__(self, id_: Id, origin: Origin, queue: bytes, content: Content, *, offset: int, now_ms: int) -> None:
        self.id, self.queue = id_, queue
        # In most messages the id and the origin id are equal: these share one tuple.
        self.origin_id, self.enqueued_ms = id_ if origin[:2] == id_ else origin[:2], origin[2]
        # The Start; None once the message is no longer in progress.
        self.content: Content | None = content
        # The offset from which markers must be read to rebuild this message, and when the Start there was written.
        self.offset, self.written_ms = offset, now_ms
        self.started_ms = now_ms
        self.deadline_ms = self.queued_ms = now_ms
        # The time-out behind the deadline; 0 if no consumer has the message: after a delay, a nack or a reject.
        self.timeout_ms = 0
        self.undelivered = False
        # The reason and the kind of the dead letter: rejected by the application, or refused by the message topic.
        self.reject_reason: str | None = None
        self.reject_kind = "rejected"

    @property
    def origin(self) -> Origin:
        """The identity in all deliveries. An id may repeat after the message topic was recreated."""
        return (*self.origin_id, self.enqueued_ms)
