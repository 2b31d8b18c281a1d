"""The seal of a progress record: the proof that a pipeline of this outbox wrote it, for this partition.

A header holds an HMAC over topic, partition, key and value, under a secret of the control row. A client that may write
to the progress topic, but does not know the secret, can neither forge a record nor move one to another partition.

A record is decoded only once its seal is checked. The check costs a stranger's record no more than one of ours: a
larger one is not looked at.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field

from thresher.core.secrets import SecretText, revealed

HEADER = "thresher-seal"
# No progress record of ours is larger: `topic.progress_limit` is below.
_MOST_BYTES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """Makes and checks the seals of one partition."""

    secret: SecretText = field(repr=False)
    topic: str
    partition: int

    def headers(self, key: bytes, value: bytes) -> list[tuple[str, bytes | None]]:
        """Return the headers that seal a record with this key and value."""
        return [(HEADER, self._code(key, value))]

    def holds(self, key: bytes, value: bytes, headers: Iterable[tuple[str, bytes | None]]) -> bool:
        """Whether one of a record's headers is our seal."""
        if len(key) + len(value) > _MOST_BYTES:
            return False
        given = [code for name, code in headers if name == HEADER and code is not None]
        if not given:
            return False
        wanted = self._code(key, value)
        return any(hmac.compare_digest(code, wanted) for code in given)

    def _code(self, key: bytes, value: bytes) -> bytes:
        # A topic's name has no slash. The key's length comes first, so that key and value cannot be shifted.
        place = f"{self.topic}/{self.partition}/{len(key)}/".encode()
        return hmac.digest(revealed(self.secret).encode(), place + key + value, "sha256")
