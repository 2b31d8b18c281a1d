"""Decides whether a message that is due is redelivered or becomes a dead letter."""

from thresher.queue.limits import Limit
from thresher.queue.wire.marker import SYNTHETIC, decode
from thresher.tracker.protocol.started import Started
from thresher.tracker.protocol.transaction import Dead, Fate, Redelivered


def fate_of(message: Started, content: bytes, limit: Limit, now_ms: int) -> Fate:
    """Return a message's fate. `content` is its Start; `limit` is its queue's, which its own limits override."""
    marker = decode(content)
    marker.key = message.queue
    marker.origin_id = marker.origin_id or marker.message_id
    if message.reject_reason is not None:
        return Dead(marker=marker, reason=message.reject_reason, kind=message.reject_kind)
    if message.id[0] != SYNTHETIC:
        # A message sent with a delay was not delivered yet, so it skips these checks.
        marker.first_started_ms = marker.first_started_ms or message.started_ms
        # A delivery that no application received does not count.
        deliveries = marker.delivery_count - message.undelivered
        own = limit.overridden(marker.max_deliveries, marker.ttl_ms)
        if (passed := own.passed(deliveries=deliveries, age_ms=now_ms - marker.first_started_ms)) is not None:
            return Dead(marker=marker, reason=passed.reason, kind=passed.kind)
    if not message.undelivered:
        marker.delivery_count += 1
    return Redelivered(marker=marker)
