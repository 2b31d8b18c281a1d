"""What becomes of a message that is due: it goes back to its queue, or becomes a dead letter."""

from dataclasses import dataclass

from thresher.queue.wire.marker import decode
from thresher.tracker.state import SYNTHETIC, Started
from thresher.tracker.transaction import Dead, Fate, Redelivered


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How often, and for how long after its first Start, a message is delivered; None: for ever."""

    max_deliveries: int | None = None
    ttl_ms: int | None = None


def fate_of(message: Started, limit: Limit, now_ms: int) -> Fate:
    """Return a message's fate. `limit` is its queue's, which the message's own overrides."""
    marker = decode(message.content or b"")
    marker.key = message.queue
    marker.origin_id = marker.origin_id or marker.message_id
    if message.reject_reason is not None:
        return Dead(marker=marker, reason=message.reject_reason, kind="rejected")
    if message.id[0] != SYNTHETIC:
        # One that was sent with a delay has not been delivered yet.
        marker.first_started_ms = marker.first_started_ms or message.started_ms
        count, age_ms = marker.delivery_count, now_ms - marker.first_started_ms
        most, ttl_ms = marker.max_deliveries or limit.max_deliveries, marker.ttl_ms or limit.ttl_ms
        if most is not None and count >= most and not message.undelivered:
            reason = f"it was delivered {count} times, and max-deliveries is {most}"
            return Dead(marker=marker, reason=reason, kind="max_deliveries")
        if ttl_ms is not None and age_ms >= ttl_ms:
            reason = f"it was started {age_ms / 1000:.1f} s ago for the first time, and ttl is {ttl_ms / 1000:g} s"
            return Dead(marker=marker, reason=reason, kind="ttl")
    if not message.undelivered:
        marker.delivery_count += 1
    return Redelivered(marker=marker)
