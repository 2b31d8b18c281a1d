"""The heartbeats of a NELI leader: a record that it must read back, and an offset commit that must be accepted.

A heartbeat counts from the moment when it was sent, not from the answer: it proves the connection and the ownership as
of then, not as of later.
"""

import json
import math
from uuid import uuid4

_KEPT = 100


def key_of(group: str) -> bytes:
    """Return the key of a group's heartbeat records: the topic may be shared with other groups, and compacted."""
    return f"thresher.neli:{group}".encode()


class LeaderHeartbeats:
    """The heartbeats of one ownership of the partition: when each was sent, and which were answered."""

    def __init__(self, group: str, *, recorded: bool, began: float) -> None:
        self._key = key_of(group)
        self._view = uuid4().hex
        # Whether records are sent, or offset commits only: we may lack the permission to write to the topic.
        self.recorded = recorded
        self._beats: dict[int, float] = {}
        self._count = 0
        # The first record has the whole deadline to come back, from the moment of the assignment.
        self._heard = began
        self._confirmed = -math.inf

    def beat(self, now: float) -> tuple[bytes, str]:
        """Return the key and the text of the next heartbeat, which is sent now."""
        self._count += 1
        self._beats[self._count] = now
        self._beats.pop(self._count - _KEPT, None)
        return self._key, json.dumps({"view": self._view, "beat": self._count})

    def hear(self, key: bytes | None, value: bytes | None) -> bool:
        """Process a record of the leader topic; return whether it is a heartbeat of this ownership."""
        sent = self._sent(value) if key == self._key else None
        if sent is not None:
            self._heard = max(self._heard, sent)
        return sent is not None

    def confirm(self, beat: str | None) -> bool:
        """Process an accepted offset commit, which proves the ownership; return whether it is of this ownership."""
        sent = self._sent(beat)
        if sent is not None:
            self._confirmed = max(self._confirmed, sent)
        return sent is not None

    def until(self, seconds: float) -> float:
        """Return the deadline of the leadership, if a heartbeat is valid for this many seconds."""
        return seconds + (min(self._heard, self._confirmed) if self.recorded else self._confirmed)

    def _sent(self, text: str | bytes | None) -> float | None:
        """Return when a heartbeat of this ownership was sent; None for any other text."""
        try:
            found = json.loads(text or "")
            return self._beats.get(found["beat"]) if found["view"] == self._view else None
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
