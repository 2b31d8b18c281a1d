"""What becomes of a message that is due: it goes back to its queue, or becomes a dead letter."""

from thresher.queue.limits import Limit
from thresher.queue.wire.marker import SYNTHETIC, decode
from thresher.tracker.protocol.started import Started
from thresher.tracker.protocol.transaction import Dead, Fate, Redelivered


def fate_of(message: Started, limit: Limit, now_ms: int) -> Fate:
    """Return a message's fate. `limit` is its queue's, which the message's own overrides."""
    marker = decode(message.content or b"")
    marker.key = message.queue
    marker.origin_id = marker.origin_id or marker.message_id
    if message.reject_reason is not None:
        return Dead(marker=marker, reason=message.reject_reason, kind=message.reject_kind)
    if message.id[0] != SYNTHETIC:
        # One that was sent with a delay has not been delivered yet.
        marker.first_started_ms = marker.first_started_ms or message.started_ms
        # A delivery that nobody saw is none.
        deliveries = marker.delivery_count - message.undelivered
        own = limit.overridden(marker.max_deliveries, marker.ttl_ms)
        if (passed := own.passed(deliveries=deliveries, age_ms=now_ms - marker.first_started_ms)) is not None:
            return Dead(marker=marker, reason=passed.reason, kind=passed.kind)
    if not message.undelivered:
        marker.delivery_count += 1
    return Redelivered(marker=marker)
