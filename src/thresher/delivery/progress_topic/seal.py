"""The seal of a progress record: the proof that a pipeline of this outbox wrote it, for this partition.

A header holds an HMAC over topic, partition, key and value, under a secret of the control row. A client that may write
to the progress topic, but does not know the secret, can neither forge a record nor move one to another partition.

Records of earlier versions have no seal. Each seal names the offset where seals began in its partition: records before
that offset are older than seals, and none can be added there any more.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field

HEADER = "thresher-seal"
_OFFSET_BYTES = 8


@dataclass(slots=True, kw_only=True)
class Seal:
    """Makes and checks the seals of one partition. `since` is the offset where seals began in it."""

    secret: str = field(repr=False)
    topic: str
    partition: int
    since: int = 0

    def headers(self, key: bytes, value: bytes) -> list[tuple[str, bytes | None]]:
        """Return the headers that seal a record with this key and value."""
        since = self.since.to_bytes(_OFFSET_BYTES)
        return [(HEADER, since + self._code(since, key, value))]

    def since_of(self, key: bytes, value: bytes, headers: Iterable[tuple[str, bytes | None]]) -> int | None:
        """Return the offset that the seal of a record names; None if the record has no seal of ours."""
        for name, given in headers:
            if name == HEADER and given is not None:
                since, code = given[:_OFFSET_BYTES], given[_OFFSET_BYTES:]
                if hmac.compare_digest(code, self._code(since, key, value)):
                    return int.from_bytes(since)
        return None

    def _code(self, since: bytes, key: bytes, value: bytes) -> bytes:
        # A topic's name has no slash. The key's length comes first, so that key and value cannot be shifted.
        place = f"{self.topic}/{self.partition}/{len(key)}/".encode()
        return hmac.digest(self.secret.encode(), place + since + key + value, "sha256")
