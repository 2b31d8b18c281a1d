"""Opens the seals of messages in the WAL: only what the outbox's own function has written is published. Pure.

1. A seal is the HMAC-SHA-256 of prefix, transaction id, place and content, with a key of the outbox.
2. The place is the end of the WAL that the function read just before it wrote the message. A message's own position is
   the end of its record. So the place is not before the position of the message before it, and before its own: a copy
   fits no second place in its transaction.
3. A copy fits no other transaction. Transaction ids have 32 bits in the WAL, and come again: a place that is further
   back than any transaction can be that has the same id is refused.
4. Keys are known by their numbers. A number that is unknown is looked for again, and so is one whose key does not fit:
   keys that were restored or made anew have old numbers. Not if the keys were read after the message was written.
"""

import enum
from collections.abc import Callable, Mapping
from hmac import compare_digest
from struct import Struct

from thresher.db.log_emitter import LogKey

_VERSION = 2
# Version, number of the key, place, seal.
_HEAD = Struct(">BiQ32s")
_PLACE = Struct(">IQ")
# Between two transactions of one id, there are four billion others, each with more than this share of the WAL.
_FURTHEST_BACK = 2**36


class Refusal(enum.StrEnum):
    """Why a message is not published."""

    NO_SEAL = "it has no seal: not the outbox's function has written it"
    NO_KEY = "its seal names a key that does not exist"
    FORGED = "its seal does not fit"
    COPY = "it is a copy of another message"


class LogKeys:
    """The keys of an outbox, by number. `read` returns them with a position: see `PostgresEmitter.keys`."""

    def __init__(self, read: Callable[[], tuple[int, Mapping[int, LogKey]]]) -> None:
        self._read = read
        self._known: Mapping[int, LogKey] = {}
        self._until = 0

    def get(self, number: int, position: int, *, unfit: LogKey | None = None) -> LogKey | None:
        """Return the key of a message at this position; None if no key, or only the `unfit` one, has this number."""
        if self._known.get(number) in (None, unfit) and position >= self._until:
            self._until, self._known = self._read()
        found = self._known.get(number)
        return None if found == unfit else found


class Seals:
    """The seals of one outbox's messages, transaction by transaction, in the order of the WAL."""

    def __init__(self, prefix: bytes, keys: LogKeys) -> None:
        """`prefix` ends with a zero."""
        self._prefix, self._keys = prefix, keys
        self._xid = 0
        # The position of the last message of this transaction that was opened.
        self._last = 0

    def begin(self, xid: int) -> None:
        """Begin a transaction."""
        self._xid, self._last = xid, 0

    def opened(self, message: bytes, position: int) -> bytes | Refusal:
        """Return the content of a message, or why it is not published."""
        if len(message) < _HEAD.size or message[0] != _VERSION:
            return Refusal.NO_SEAL
        _, number, place, seal = _HEAD.unpack_from(message)
        key = self._keys.get(number, position)
        if key is None:
            return Refusal.NO_KEY
        content = message[_HEAD.size :]
        sealed = self._prefix + _PLACE.pack(self._xid, place) + content
        while not compare_digest(key.seal(sealed), seal):
            key = self._keys.get(number, position, unfit=key)
            if key is None:
                return Refusal.FORGED
        if not self._last <= place < position or position - place > _FURTHEST_BACK:
            return Refusal.COPY
        self._last = position
        return content
