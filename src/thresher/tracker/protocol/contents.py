"""The contents of the Starts in progress: in memory while there is room, then compressed, then on disk.

1. A content of more than 64 KB is kept compressed: a producer may send a megabyte in a few hundred bytes of zstd.
2. Once all contents take `roomy_bytes`, so are those of more than 256 bytes: earlier, that would halve the speed.
3. Once they take `most_bytes`, a content that does not fit goes to the store. Those below 512 bytes stay, because a
   place in the store costs nearly as much memory.
4. A content that the store cannot take stays in memory.

No decision depends on where a content is.
"""

from typing import NamedTuple, Protocol

import pyarrow as pa

from thresher.core.spill import SpillFull

_LARGE_BYTES, _SMALL_BYTES = 65_536, 256
# Contents that are smaller, as they are kept, are not spilled.
_LEAST_SPILLED = 512
_CODEC = pa.Codec("zstd", compression_level=1)


class Packed(NamedTuple):
    """A compressed content, and its size."""

    compressed: bytes
    size: int


class Spilled(NamedTuple):
    """A content in the store: its place, its size, and whether it is compressed there."""

    place: int
    size: int
    compressed: bool


Content = bytes | Packed | Spilled


class Store(Protocol):
    """A store on disk, which is empty after a crash."""

    def put(self, content: bytes) -> int:
        """Store a content, and return its place. Raises `SpillFull`."""

    def get(self, place: int) -> bytes:
        """Return a content."""

    def forget(self, place: int) -> None:
        """Free a place."""


class Contents:
    """The contents of one shard. For one thread."""

    def __init__(
        self, store: Store | None = None, *, roomy_bytes: int = 32_000_000, most_bytes: int = 256_000_000
    ) -> None:
        """Without a `store`, everything stays in memory."""
        self._store, self._roomy_bytes, self._most_bytes = store, roomy_bytes, most_bytes
        # The size of the contents in memory, as they are kept.
        self.kept_bytes = 0
        # Why the store took no more, as long as contents take more memory than they should.
        self.refusal: str | None = None

    def keep(self, content: bytes) -> Content:
        """Return a content as it is kept from now on, until `forget`."""
        kept = packed(content, has_room=self.kept_bytes < self._roomy_bytes)
        size = _bytes_in_memory(kept)
        if self.kept_bytes + size > self._most_bytes and size >= _LEAST_SPILLED and self._store is not None:
            try:
                spilled = _spilled(kept, self._store)
            except SpillFull as error:
                self.refusal = str(error)
            else:
                self.refusal = None
                return spilled
        self.kept_bytes += size
        return kept

    def read(self, kept: Content | None) -> bytes:
        """Return a content as it was read; nothing if its message is no longer in progress."""
        match kept:
            case None:
                return b""
            case Spilled():
                stored = b"" if self._store is None else self._store.get(kept.place)
                return _decompressed(stored, kept.size) if kept.compressed else stored
            case Packed():
                return _decompressed(kept.compressed, kept.size)
        return kept

    def forget(self, kept: Content) -> None:
        """Free a content."""
        self.kept_bytes -= _bytes_in_memory(kept)
        if self.refusal is not None and self.kept_bytes <= self._most_bytes:
            self.refusal = None
        if isinstance(kept, Spilled) and self._store is not None:
            self._store.forget(kept.place)


def packed(content: bytes, *, has_room: bool = True) -> bytes | Packed:
    """Return a content as it is kept in memory. A small one, and one that does not compress, stays as it is.

    What counts as small depends on whether there `has_room`.
    """
    if len(content) < (_LARGE_BYTES if has_room else _SMALL_BYTES):
        return content
    compressed: bytes = _CODEC.compress(content, asbytes=True)
    return Packed(compressed, len(content)) if len(compressed) < len(content) * 3 // 4 else content


def size_of(kept: Content | None) -> int:
    """Return the size of a content as it was read."""
    return kept.size if isinstance(kept, Packed | Spilled) else len(kept or b"")


def _spilled(kept: bytes | Packed, store: Store) -> Spilled:
    if isinstance(kept, Packed):
        return Spilled(store.put(kept.compressed), kept.size, compressed=True)
    return Spilled(store.put(kept), len(kept), compressed=False)


def _bytes_in_memory(kept: Content) -> int:
    match kept:
        case Spilled():
            return 0
        case Packed():
            return len(kept.compressed)
    return len(kept)


def _decompressed(compressed: bytes, size: int) -> bytes:
    found: bytes = _CODEC.decompress(compressed, size, asbytes=True)
    return found
