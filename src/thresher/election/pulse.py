"""The signs of life that a NELI leader sends and has to get back: records of its own, and the coordinator's word.

A sign counts from when it was sent, not from when it came back: whatever happened to the line meanwhile, it was sound
then and not necessarily later.
"""

import json
import math
from uuid import uuid4

_KEPT = 100


def key_of(group: str) -> bytes:
    """Return the key of a group's heartbeats: the topic may be others' too, and may be compacted."""
    return f"thresher.neli:{group}".encode()


class Pulse:
    """One view's signs of life: what was sent when, and what has come back."""

    def __init__(self, group: str, *, recorded: bool, began: float) -> None:
        self._key = key_of(group)
        self._view = uuid4().hex
        # Whether records are sent at all: a topic may be ours to read only.
        self.recorded = recorded
        self._beats: dict[int, float] = {}
        self._count = 0
        # The first record may take its time: nobody can have heard one before.
        self._heard = began
        self._confirmed = -math.inf

    def beat(self, now: float) -> tuple[bytes, str]:
        """Return the key and the text of the next sign of life, which is sent now."""
        self._count += 1
        self._beats[self._count] = now
        self._beats.pop(self._count - _KEPT, None)
        return self._key, json.dumps({"view": self._view, "beat": self._count})

    def hear(self, key: bytes | None, value: bytes | None) -> bool:
        """Take in a record of the leader topic; return whether it was one of this view's heartbeats."""
        sent = self._sent(value) if key == self._key else None
        if sent is not None:
            self._heard = max(self._heard, sent)
        return sent is not None

    def confirm(self, beat: str | None) -> bool:
        """The group's coordinator has accepted this sign of life: we owned the partition. Return whether it counts."""
        sent = self._sent(beat)
        if sent is not None:
            self._confirmed = max(self._confirmed, sent)
        return sent is not None

    def until(self, seconds: float) -> float:
        """Return until when we may lead, if a sign of life is good for so long."""
        return seconds + (min(self._heard, self._confirmed) if self.recorded else self._confirmed)

    def _sent(self, text: str | bytes | None) -> float | None:
        """Return when a sign of life of this view was sent; None for anything else."""
        try:
            found = json.loads(text or "")
            return self._beats.get(found["beat"]) if found["view"] == self._view else None
        except (ValueError, TypeError, KeyError):
            return None
